package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// nameWidth is how wide the column of names is; longer ones push their line.
const nameWidth = 22

// Line writes a finding as one line for people: level, check, what and why, and what to do.
func Line(w io.Writer, f Finding) error {
	text := fmt.Sprintf("%-8s %-*s %s", f.Level, nameWidth, f.Check, f.Text)
	if f.Remedy != "" {
		text += ". To do: " + f.Remedy
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// Summary writes how many findings there are of each kind.
func Summary(w io.Writer, all []Finding) error {
	count := map[Level]int{}
	for _, f := range all {
		count[f.Level]++
	}
	var parts []string
	for _, l := range []Level{Fail, Warning, OK, Skipped} {
		if n := count[l]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, l))
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(parts, ", "))
	return err
}

// JSON writes a report for programs.
func JSON(w io.Writer, r Report) error {
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(r)
}

// Examine goes through the checks and shows what they find: line by line as it is found, or as one JSON object. It
// returns the worst level; an error is that it couldn't be shown, or that ctx ended.
func Examine(ctx context.Context, w io.Writer, program, version string, checks []Check, asJSON bool) (Level, error) {
	var shown error
	all := Run(ctx, checks, func(f Finding) {
		if !asJSON && shown == nil {
			shown = Line(w, f)
		}
	})
	level := Worst(all)
	switch {
	case shown != nil:
		return level, shown
	case ctx.Err() != nil:
		return level, fmt.Errorf("interrupted")
	case asJSON:
		return level, JSON(w, Report{Program: program, Version: version, Level: level, Findings: all})
	}
	return level, Summary(w, all)
}
