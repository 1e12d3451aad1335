package sse

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"iop/packages/go/execution"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// read returns the events of pieces, each as name|data.
func read(t testing.TB, limit int, pieces ...string) ([]string, error) {
	t.Helper()
	var events []string
	r := New(limit, func(e Event) error {
		events = append(events, e.Name+"|"+string(e.Data))
		return nil
	})
	for _, p := range pieces {
		if err := r.Feed([]byte(p)); err != nil {
			return events, err
		}
	}
	return events, nil
}

// ST-07 and the rules of the WHATWG.
func TestEvents(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                 nil,
		"data: a\n\n":                      {"|a"},
		"data:a\r\n\r\n":                   {"|a"},
		"data: a\r\r":                      {"|a"},
		"data: a\n\r":                      {"|a"},
		"data: a\r\n\ndata: b\n\r\n":       {"|a", "|b"},
		"data:  two blanks\n\n":            {"| two blanks"},
		"data: a\ndata: b\ndata:\n\n":      {"|a\nb\n"},
		"data\n\n":                         {"|"},
		"data\ndata\n\n":                   {"|\n"},
		"data:\n\n":                        {"|"},
		"\n\n\n":                           nil,
		": note\n\ndata: a\n: b\n\n":       {"|a"},
		":\n\n:data: a\n\n":                nil,
		"event: e\ndata: a\n\ndata: b\n\n": {"e|a", "|b"},
		"event: e\n\ndata: a\n\n":          {"|a"},
		"event: e\nevent: f\ndata: a\n\n":  {"f|a"},
		"event: e\nevent\ndata: a\n\n":     {"|a"},
		"events: e\neven: e\ndata: a\n\n":  {"|a"},
		"dat: a\ndata2: b\nDATA: c\ndatadata: d\n\n": nil,
		" data: a\n\n": nil,
		"id: 7\nretry: 5\nunknown: x\nnothing\ndata: a\n\n": {"|a"},
		"data: a:b: c\n\n":                    {"|a:b: c"},
		"data: \xff\x00\n\n":                  {"|\xff\x00"},
		"\xef\xbb\xbfdata: a\n\n":             {"|a"},
		"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n": nil,
		"\xef\xbbdata: a\ndata: b\n\n":        {"|b"},
		"\xef\xbb\xbf\n\n":                    nil,
		"data: a":                             nil,
		"data: a\n":                           nil,
		"data: a\n\ndata: [DONE]\n":           {"|a"},
		"{\"choices\":[]}\n\n":                nil,
		"event: " + strings.Repeat("x", 200) + "\ndata: a\n\n": {strings.Repeat("x", maxName) + "|a"},
	} {
		for what, pieces := range map[string][]string{"whole": {text}, "bytes": strings.Split(text, "")} {
			if what == "bytes" { // by bytes, not by characters
				pieces = nil
				for i := range len(text) {
					pieces = append(pieces, text[i:i+1])
				}
			}
			if got, err := read(t, 0, pieces...); err != nil || !cmp.Equal(got, want) {
				t.Errorf("%q (%s): %q, %v; want %q", text, what, got, err, want)
			}
		}
	}
}

// An event is given as soon as its last byte is there, whatever the line ends.
func TestNothingIsHeldBack(t *testing.T) {
	for _, text := range []string{"data: a\n\n", "data: a\r\n\r", "data: a\r\r"} {
		if got, _ := read(t, 0, text); len(got) != 1 {
			t.Errorf("%q: %q", text, got)
		}
		if got, _ := read(t, 0, text[:len(text)-1]); len(got) != 0 {
			t.Errorf("%q: %q", text[:len(text)-1], got)
		}
	}
}

// ST-04: a line of 5 MiB is an event like others, one over the limit an error that names it.
func TestLongLines(t *testing.T) {
	long := strings.Repeat("ab\"é", 1<<20)
	stream := "data: " + long + "\n\ndata: next\n\n"
	var pieces []string
	for rest := stream; rest != ""; {
		n := min(len(rest), 16320)
		pieces = append(pieces, rest[:n])
		rest = rest[n:]
	}
	got, err := read(t, 0, pieces...)
	if err != nil || len(got) != 2 || got[0] != "|"+long || got[1] != "|next" {
		t.Fatalf("%d events, %v", len(got), err)
	}
	for limit, fits := range map[int]bool{len(long): true, len(long) - 1: false, 10: false} {
		_, err := read(t, limit, pieces...)
		var f *execution.Failure
		if (err == nil) != fits || !fits && (!errors.As(err, &f) || f.Code != execution.CodeAdapterDecode ||
			!strings.Contains(f.Text, fmt.Sprint("limit of ", limit, " bytes"))) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	if _, err := read(t, 4, "data: ab\ndata: cd\n\n"); err == nil {
		t.Error("two lines of one event are over the limit together, and were taken")
	}
	if got, err := read(t, 4, "data: abcd\n\ndata: efgh\n\n: a long comment\nevent: long\nother: long as well\n\n"); err != nil || len(got) != 2 {
		t.Errorf("%q, %v: only the data of one event counts", got, err)
	}
}

// An error ends the reader, and no memory of a large event is kept.
func TestErrorsStayAndMemoryGoes(t *testing.T) {
	enough := errors.New("enough")
	n := 0
	r := New(0, func(Event) error { n++; return enough })
	for range 3 {
		if err := r.Feed([]byte("data: a\n\ndata: b\n\n")); err != enough || n != 1 {
			t.Fatalf("%v after %d events", err, n)
		}
	}
	r = New(0, func(Event) error { return nil })
	if err := r.Feed([]byte("data: " + strings.Repeat("x", 2*keep) + "\n\n")); err != nil || r.data != nil {
		t.Errorf("%v, %d bytes are kept", err, cap(r.data))
	}
	r = New(9, func(Event) error { return nil })
	if err := r.Feed([]byte("data: 0123456789\n\n")); err == nil || r.Feed([]byte("data: a\n\n")) != err {
		t.Errorf("%v, and the next piece was taken", err)
	}
}

// plain reads a whole stream in the simplest way that keeps the rules.
func plain(text string) (events []string) {
	text = strings.TrimPrefix(text, "\xef\xbb\xbf")
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(text, "\n")
	name, data := "", []string(nil)
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			if data != nil {
				events = append(events, name[:min(len(name), maxName)]+"|"+strings.Join(data, "\n"))
			}
			name, data = "", nil
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimPrefix(value, " "); field {
		case "data":
			data = append(data, value)
		case "event":
			name = value
		}
	}
	return events
}

// Whatever comes, however it is cut: the events are those of the simple reader.
func FuzzReader(f *testing.F) {
	for _, s := range []string{"data: a\r\n\r\n", "\xef\xbb\xbfevent: x\rdata\r\rdata:b\n\n", ":c\n\ndata: \xe2\x82\ndata\n\n", "\xef\xbb\n\ndata: 1\n\n"} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 3))
		var pieces []string
		for rest := bytes.Clone(stream); len(rest) > 0; {
			n := 1 + random.IntN(min(len(rest), 9))
			pieces = append(pieces, string(rest[:n]))
			rest = rest[n:]
		}
		got, err := read(t, 0, pieces...)
		if err != nil {
			t.Fatal(err)
		}
		if want := plain(string(stream)); !cmp.Equal(got, want) {
			t.Fatalf("%q: %q, want %q", stream, got, want)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	piece := []byte(strings.Repeat("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"}}]}\n\n", 8))
	r := New(0, func(Event) error { return nil })
	b.SetBytes(int64(len(piece)))
	for b.Loop() {
		_ = r.Feed(piece)
	}
}
