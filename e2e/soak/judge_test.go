package main

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
)

// said is what the soak's provider answers to an order.
func said(o order) *fakeprovider.Said {
	s := &fakeprovider.Said{Model: "m", Finish: "stop", Usage: &fakeprovider.Usage{Input: 7, Output: 1}}
	for n := range o.pieces {
		s.Pieces = append(s.Pieces, fakeprovider.Piece{Text: o.piece(n)})
	}
	return s
}

// A whole answer in any dialect is one; one that lacks a piece, its terminal, or has two of them, or ends cleanly in the
// middle, breaks a promise; one whose connection broke doesn't.
func TestJudge(t *testing.T) {
	broke := errors.New("unexpected EOF")
	o := order{mark: "m1", pieces: 5, size: 40}
	for _, way := range []way{openai, anthropic, ollama} {
		a := ask{way: way, model: string(way), stream: true, order: o}
		path, _ := a.request()
		d := fakeprovider.DialectOf(path)
		pieces := d.Stream(said(o), &fakeprovider.Asked{Stream: true})
		whole := strings.Join(pieces, "")
		short := order{mark: "m1", pieces: 4, size: 40}
		for name, c := range map[string]struct {
			body    string
			err     error
			outcome string
			wrong   bool
		}{
			"whole":                     {whole, nil, served, false},
			"broken off behind its end": {whole, broke, served, false},
			"broken off in the middle":  {strings.Join(pieces[:3], ""), broke, cut, false},
			"cut inside a line":         {whole[:len(pieces[0])+9], broke, cut, false},
			"a clean end in the middle": {strings.Join(pieces[:3], ""), nil, "no terminal", true},
			"a piece is missing":        {strings.Join(d.Stream(said(short), &fakeprovider.Asked{Stream: true}), ""), nil, "not whole", true},
			"twice":                     {whole + whole, nil, "terminals", true},
			"of another caller":         {strings.ReplaceAll(whole, "m1/", "m2/"), nil, "not whole", true},
			"not the dialect":           {"data: {{{\n\n", nil, "nonsense", true},
		} {
			outcome, wrong := judge(a, 200, []byte(c.body), c.err)
			if outcome != c.outcome || (wrong != "") != c.wrong {
				t.Errorf("%s, %s: %q, %q", way, name, outcome, wrong)
			}
		}
		a.stream = false
		if outcome, wrong := judge(a, 200, []byte(d.Whole(said(o))), nil); outcome != served || wrong != "" {
			t.Errorf("%s, not streamed: %q, %q", way, outcome, wrong)
		}
		for status, code := range map[int]string{502: "node_lost", 500: "internal", 503: "queue_full"} {
			_, wrong := judge(a, status, []byte(`{"error":{"code":"`+code+`"}}`), nil)
			if (wrong != "") != (code == "internal") {
				t.Errorf("%d %s: %q", status, code, wrong)
			}
		}
	}
	run := ask{way: typed, model: "openai", stream: true, order: order{mark: "m", pieces: 1, size: 1}}
	events := "event: start\ndata: {\"run_id\":\"r\"}\n\nevent: delta\ndata: {\"text\":\"m/0 \"}\n\n"
	for end, want := range map[string]string{
		"event: complete\ndata: {\"finish_reason\":\"stop\"}\n\n":             served,
		"event: error\ndata: {\"error\":{\"code\":\"node_lost\"}}\n\n":        "in its stream: node_lost",
		"event: cancelled\ndata: {\"cause\":\"api\"}\n\n":                     "in its stream: api",
		"event: error\ndata: {\"error\":{}}\n\nevent: complete\ndata: {}\n\n": "terminals",
	} {
		if outcome, _ := judge(run, 200, []byte(events+end), nil); outcome != want {
			t.Errorf("%q: %q", end, outcome)
		}
	}
}

// The same seed asks for the same, and a provider reads an order as it was written.
func TestSeed(t *testing.T) {
	a, b := rand.New(rand.NewPCG(7, 1)), rand.New(rand.NewPCG(7, 1))
	for range 200 {
		x, y := newAsk(a, "mark-1"), newAsk(b, "mark-1")
		if x != y {
			t.Fatalf("%v, %v", x, y)
		}
		got, err := orderOf(x.order.words() + strings.Repeat("y", x.pad))
		if err != nil || got.pause != x.order.pause.Truncate(time.Millisecond) || got.text() != x.order.text() {
			t.Fatalf("%+v, %v", got, err)
		}
	}
}
