package config

import (
	"errors"
	"strings"
	"testing"
)

// Whatever a file holds: no panic, and either a value or a list of problems, each with a text and a line of the file.
func FuzzConfig(f *testing.F) {
	f.Add(fullEdge)
	f.Add(goodNode)
	for _, cases := range [][]refusal{typoCases, yamlCases, valueCases, listenCases, recordCases, adapterCases, routeCases, sourceCases, profileCases, slotCases} {
		for _, c := range cases {
			f.Add(c.file)
		}
	}
	f.Fuzz(func(t *testing.T, file string) {
		e, edgeErr := ParseEdge("f", []byte(file))
		n, nodeErr := ParseNode("f", []byte(file))
		if (e == nil) == (edgeErr == nil) || (n == nil) == (nodeErr == nil) {
			t.Fatal("neither a value nor an error, or both")
		}
		if e != nil {
			s := NewState(e, 1, nil)
			if next := NewState(e, 1, s); len(e.Nodes) > 0 && next.Projection(e.Nodes[0].ID).Number != 1 {
				t.Fatal("the projection of an unchanged node has a new number")
			}
			_ = e.MemoryBound().String()
		}
		lines := strings.Count(file, "\n") + strings.Count(file, "\r") + strings.Count(file, "\u0085") +
			strings.Count(file, "\u2028") + strings.Count(file, "\u2029") + 2
		for _, err := range []error{edgeErr, nodeErr} {
			errs := new(Errors)
			if err == nil {
				continue
			}
			if !errors.As(err, &errs) || len(errs.List) == 0 {
				t.Fatalf("not a list of problems: %v", err)
			}
			for _, p := range errs.List {
				if p.Text == "" || p.Line < 0 || p.Line > lines || strings.ContainsAny(p.String(), "\n\r") {
					t.Fatalf("%+v in a file of %d lines", p, lines)
				}
			}
		}
	})
}
