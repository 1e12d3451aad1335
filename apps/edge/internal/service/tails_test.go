package service

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/execution"
)

// Answers that are whole while their callers read hold memory and no place: they are bounded in number, the longest go
// first, and everybody has ten seconds.
func TestTailsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		ts := &tails{most: 2}
		var runs []*Run
		add := func(n int) {
			for range n {
				r := s.newRun(context.Background(), nil, 0, Outcome{RunID: fmt.Sprint(len(runs)), Kind: execution.KindTunnel})
				runs = append(runs, r)
				ts.add(r)
			}
		}
		cut := func() (list []int) {
			for i, r := range runs {
				if errors.Is(r.cause(), execution.CauseClientSlow) {
					list = append(list, i)
				}
			}
			return list
		}
		add(5) // over the bound, but a moment ago
		if c := cut(); len(c) != 0 || ts.len() != 5 {
			t.Fatalf("%v were cut at once", c)
		}
		time.Sleep(tailGrace)
		add(1)
		if c := cut(); fmt.Sprint(c) != "[0 1 2 3]" || ts.len() != 2 {
			t.Fatalf("%v were cut, %d are left", c, ts.len())
		}
		ts.remove(runs[4])
		ts.remove(runs[4])
		ts.remove(runs[0])
		add(8)
		if c := cut(); len(c) != 5 || ts.len() != tailBurst*2 {
			t.Errorf("%d were cut, %d are left: a burst has a bound, too", len(c), ts.len())
		}
		ended := s.newRun(context.Background(), nil, 0, Outcome{RunID: "ended"})
		ended.decide(nil)
		ts.add(ended)
		if ended.tail != nil {
			t.Error("a run that has ended is remembered")
		}
	})
}

// A caller that stops reading an answer which is whole here is cut when there are too many of them, and nothing is left
// of it; one that reads isn't touched.
func TestSlowReadersGo(t *testing.T) {
	r := newRig(t, setup{capacity: 8, service: Config{SlowAnswers: 1}, work: func(w *work) { w.answer("hello") }})
	stuck := make(chan struct{})
	var slow []*pending
	for i := range tailBurst + 1 {
		slow = append(slow, r.submit(r.tunnel(fmt.Sprint("slow", i), "{}"), &recorder{onBody: func([]byte) error { <-stuck; return nil }}))
		r.poll("the place is free while the caller reads", func() bool { return r.held() == 0 && r.svc.SlowAnswers() >= min(i+1, tailBurst) })
	}
	r.poll("the first is cut", func() bool { first, _ := r.svc.runs.find("slow0"); return first.decided() })
	if n := r.svc.SlowAnswers(); n != tailBurst {
		t.Errorf("%d slow answers", n)
	}
	if o, c := r.run(r.tunnel("quick", "{}")); !o.OK() || c.text() != "hello" {
		t.Errorf("one that reads: %v %q", o.Failure, c.text())
	}
	close(stuck)
	codes := map[execution.Code]int{}
	for _, p := range slow {
		codes[code(r.outcome(p))]++
	}
	if codes[execution.CodeClientSlow] == 0 || codes[execution.CodeOK] == 0 || len(codes) != 2 {
		t.Errorf("ended as %v", codes)
	}
	if n := r.svc.SlowAnswers(); n != 0 {
		t.Errorf("%d slow answers are left", n)
	}
}
