package ndjson

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"iop/packages/go/execution"
)

// read feeds a stream in pieces that cut returns and gives back its lines and its rest.
func read(t *testing.T, limit int, stream string, cut func(left int) int) (lines []string, rest string, err error) {
	t.Helper()
	r := New(limit, func(line []byte) error {
		lines = append(lines, string(line))
		return nil
	})
	for left := []byte(stream); len(left) > 0 && err == nil; {
		n := cut(len(left))
		piece := bytes.Clone(left[:n])
		err = r.Feed(piece)
		clear(piece) // the reader must keep nothing of it
		left = left[n:]
	}
	return lines, string(r.Rest()), err
}

func whole(left int) int { return left }

func seeded(seed uint64) func(int) int {
	random := rand.New(rand.NewPCG(seed, 1))
	return func(left int) int { return 1 + random.IntN(min(left, 1+random.IntN(30))) }
}

// ST-24: lines that are glued, cut, ended by CRLF or not at all, blank, or long.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for name, k := range map[string]struct {
		stream string
		lines  []string
		rest   string
	}{
		"nothing":        {"", nil, ""},
		"three":          {"{1}\n{2}\n{3}\n", []string{"{1}", "{2}", "{3}"}, ""},
		"CRLF":           {"{1}\r\n{2}\r\n", []string{"{1}", "{2}"}, ""},
		"blank lines":    {"\n\r\n{1}\n \t\r\n\n{2}\n", []string{"{1}", "{2}"}, ""},
		"blanks around":  {"  {1} \t\n\t{2}\n", []string{"{1}", "{2}"}, ""},
		"no last end":    {"{1}\n{2}", []string{"{1}"}, "{2}"},
		"a CR, no LF":    {"{1}\n{2}\r", []string{"{1}"}, "{2}"},
		"blanks at last": {"{1}\n \r", []string{"{1}"}, ""},
		"a long one":     {"{1}\n" + long + "\n{2}\n", []string{"{1}", long, "{2}"}, ""},
	} {
		for seed := range uint64(20) {
			cut := seeded(seed)
			if seed == 0 {
				cut = whole
			}
			if name == "a long one" {
				cut = func(left int) int { return min(left, 1000+int(seed)) }
			}
			lines, rest, err := read(t, 0, k.stream, cut)
			if err != nil || !slices.Equal(lines, k.lines) || rest != k.rest {
				t.Fatalf("%s, seed %d: %d lines, rest %q, %v", name, seed, len(lines), rest, err)
			}
		}
	}
}

// ST-04: a line of exactly the limit is read, one byte more is an error that names the limit, however it comes.
func TestLimit(t *testing.T) {
	for _, cut := range []func(int) int{whole, func(int) int { return 1 }, seeded(3)} {
		if lines, _, err := read(t, 10, "{12345678}\n{}\n", cut); err != nil || len(lines) != 2 {
			t.Errorf("at the limit: %q, %v", lines, err)
		}
		lines, rest, err := read(t, 10, "{}\n{123456789}\n{}\n", cut)
		f, ok := errors.AsType[*execution.Failure](err)
		if !ok || f.Code != execution.CodeAdapterDecode || !strings.Contains(f.Text, "10 bytes") || len(lines) != 1 || rest != "" {
			t.Errorf("over it: %q, rest %q, %v", lines, rest, err)
		}
	}
}

// Who gets the lines may end it: no further line, the same error again, and no rest.
func TestGiveEndsIt(t *testing.T) {
	enough, given := errors.New("enough"), 0
	r := New(0, func([]byte) error { given++; return enough })
	for range 2 {
		if err := r.Feed([]byte("{1}\n{2}\n{3}")); err != enough || given != 1 || len(r.Rest()) != 0 {
			t.Errorf("%v after %d lines, rest %q", err, given, r.Rest())
		}
	}
}

// A long line's memory isn't kept.
func TestMemoryIsGivenBack(t *testing.T) {
	r := New(0, func([]byte) error { return nil })
	for range 2 {
		if err := r.Feed(bytes.Repeat([]byte("x"), keep)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Feed([]byte("\n")); err != nil || r.line != nil {
		t.Errorf("%v, %d bytes are kept", err, cap(r.line))
	}
}

// FuzzReader: no input panics, how it is cut never matters, and nothing is lost but blanks and line ends.
func FuzzReader(f *testing.F) {
	f.Add([]byte("{\"a\":1}\n{\"b\":2}\r\n\n{"), uint64(1))
	f.Add([]byte("\r\r\n\t x\n\n"), uint64(2))
	f.Add(bytes.Repeat([]byte("0123456789"), 20), uint64(3))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		const limit = 100
		lines, rest, err := read(t, limit, string(stream), whole)
		again, restAgain, errAgain := read(t, limit, string(stream), seeded(seed))
		if !slices.Equal(lines, again) || rest != restAgain || (err == nil) != (errAgain == nil) {
			t.Fatalf("whole: %q %q %v, cut: %q %q %v", lines, rest, err, again, restAgain, errAgain)
		}
		if err != nil {
			return
		}
		strip := strings.NewReplacer(" ", "", "\t", "", "\r", "", "\n", "")
		if got := strip.Replace(strings.Join(lines, "") + rest); got != strip.Replace(string(stream)) {
			t.Fatalf("%q became %q", stream, got)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	piece := []byte(`{"model":"tiny","created_at":"2026-11-29T13:05:25.216666453Z","message":{"role":"assistant","content":" slowly"},"done":false}` + "\n")
	r := New(0, func([]byte) error { return nil })
	b.ReportAllocs()
	for b.Loop() {
		_ = r.Feed(piece)
	}
}
