package service

import (
	"testing"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

func tokens(n int64) *int64 { return &n }

// Issue 9: what the provider counted is charged, and where it counted nothing an estimate that says that it is one. What was never
// sent costs nothing.
func TestTokensOfARun(t *testing.T) {
	sent := &execution.Failure{Code: execution.CodeUpstreamTruncated}
	unsent := &execution.Failure{Code: execution.CodeUpstreamConnect, NothingSent: true}
	for name, c := range map[string]struct {
		out       Outcome
		in, outs  int64
		estimated bool
	}{
		"counted":              {Outcome{Attempts: 1, Usage: execution.Usage{Input: tokens(7), Output: tokens(3)}, BytesIn: 4000}, 7, 3, false},
		"embeddings":           {Outcome{Attempts: 1, Usage: execution.Usage{Input: tokens(7)}, BytesOut: 50_000}, 7, 0, false},
		"cut after its input":  {Outcome{Attempts: 1, Failure: sent, Usage: execution.Usage{Input: tokens(7)}, Kind: execution.KindRun, BytesOut: 41}, 7, 11, true},
		"a run":                {Outcome{Attempts: 1, Kind: execution.KindRun, BytesIn: 401, BytesOut: 400}, 101, 100, true},
		"a whole answer":       {Outcome{Attempts: 1, Kind: execution.KindTunnel, Status: 200, BytesIn: 4, BytesOut: 800}, 1, 200, true},
		"an error's text":      {Outcome{Attempts: 1, Kind: execution.KindTunnel, Status: 400, BytesIn: 4, BytesOut: 800}, 1, 0, true},
		"events":               {Outcome{Attempts: 1, Kind: execution.KindTunnel, Status: 200, BytesOut: 2000, lines: 20, linesPerEvent: 2}, 0, 10, true},
		"events with a lot in": {Outcome{Attempts: 1, Kind: execution.KindTunnel, Status: 200, BytesOut: 25_600, lines: 2, linesPerEvent: 2}, 0, 100, true},
		"lines":                {Outcome{Attempts: 1, Kind: execution.KindTunnel, Status: 200, BytesOut: 20, lines: 20, linesPerEvent: 1}, 0, 20, true},
		"nothing sent":         {Outcome{Attempts: 2, Failure: unsent, BytesIn: 4000}, 0, 0, false},
		"never placed":         {Outcome{BytesIn: 4000, Failure: sent}, 0, 0, false},
	} {
		used, estimated := c.out.Tokens()
		if count64(used.Input) != c.in || count64(used.Output) != c.outs || estimated != c.estimated || c.out.usedTokens() != c.in+c.outs {
			t.Errorf("%s: %d and %d, estimated %v", name, count64(used.Input), count64(used.Output), estimated)
		}
	}
}

// meter is a Meter in memory.
type meter struct {
	today int64
	ended []Outcome
}

func (m *meter) Today(string) int64 { return m.today }
func (m *meter) Ended(o *Outcome)   { m.ended = append(m.ended, *o); m.today += o.usedTokens() }

// A stream that tells no counts can't evade a budget, and the day's budget is that of all runs before.
func TestBudgets(t *testing.T) {
	m := &meter{}
	r := newRig(t, setup{service: Config{Meter: m}, work: func(w *work) {
		w.input()
		w.accept()
		w.head(200, &pb.Header{Name: "Content-Type", Value: []byte("text/event-stream; charset=utf-8")})
		for range 50 {
			w.body("data: {\"a\":1}\n\n")
		}
		w.end(50 * 15)
	}})
	r.withPrincipal(", limits: {tokens_per_day: 2000}")
	run := func() execution.Code {
		o, _ := r.run(r.alices(NewRunID()))
		return code(o)
	}
	n := 0
	for run() == execution.CodeOK {
		n++
	}
	if run() != execution.CodeLimitExceeded || n < 30 || m.today < 1500 || m.today >= 2000+51 || len(m.ended) != n {
		t.Errorf("%d runs used %d tokens, %d were told", n, m.today, len(m.ended))
	}
	if used, estimated := m.ended[0].Tokens(); !estimated || *used.Output != 50 {
		t.Errorf("%v %v", used, estimated)
	}
}
