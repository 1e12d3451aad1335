package service

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// protocol.md 8 "cancel overtakes the request", the edge's half: the node hears of the cancel before it reads the
// open, and refuses the open when it comes. The driver is long gone, and still the place is free at once.
func TestCancelOvertakesTheRequest(t *testing.T) {
	r := newRig(t, setup{work: func(w *work) {
		w.node.awaitCancel(w.runID)
		w.reject(execution.CodeCancelled, true)
	}})
	p := r.submit(r.tunnel("run-1", "body"), &recorder{})
	untilSent(r, p)
	p.leave()
	if o := r.outcome(p); code(o) != execution.CodeClientGone || o.Attempts != 1 {
		t.Errorf("%+v", o)
	}
	r.idle()
	if n := r.svc.LateFrames()["rejected"]; n != 1 {
		t.Errorf("late frames: %v", r.svc.LateFrames())
	}
}

// Everything late is counted by kind and changes nothing.
func TestLateFrames(t *testing.T) {
	r := newRig(t, setup{work: func(w *work) {
		w.accept()
		w.head(200)
		w.body("one")
		w.node.awaitCancel(w.runID)
		w.body("two")
		w.usage(1, 2)
		w.end(6)
	}})
	p := r.submit(r.tunnel("run-1", ""), &recorder{})
	untilStreaming(r, p)
	p.leave()
	if o := r.outcome(p); code(o) != execution.CodeClientGone || p.text() != "one" || o.Usage.Known() {
		t.Errorf("%+v, body %q", o, p.text())
	}
	r.idle()
	r.poll("late frames are counted", func() bool {
		late := r.svc.LateFrames()
		return late["body"] == 1 && late["usage"] == 1 && late["end"] == 1
	})
}

// A frame behind the terminal comes too late to matter.
func TestFrameAfterTheTerminal(t *testing.T) {
	r := newRig(t, setup{work: func(w *work) {
		w.accept()
		w.finish(pb.RunStatus_RUN_STATUS_COMPLETE)
		w.together(
			&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Head{Head: &pb.TunnelHead{Status: 200}}},
			&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_End{End: &pb.TunnelEnd{}}},
			&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Error{Error: &pb.Failure{Code: pb.FailureCode_FAILURE_CODE_INTERNAL}}},
		)
	}})
	if o, c := r.run(r.tunnel("run-1", "")); !o.OK() || c.ends != 1 {
		t.Errorf("%+v", o)
	}
	if n := r.svc.LateFrames()["error"]; n != 1 {
		t.Errorf("late frames: %v", r.svc.LateFrames())
	}
	r.idle()
}

// together sends frames as one write.
func (w *work) together(frames ...*pb.ProviderTunnelFrame) {
	for _, f := range frames {
		w.seq++
		f.Seq = w.seq
		_ = w.Append(f)
	}
	_ = w.Flush()
}

// ST-20: whatever order a node sends terminals and frames in, the caller gets exactly one end, and it is whole only if
// the node's first terminal said so at the right place.
func TestRandomTerminalOrders(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	scripts := map[string][]int{}
	r := newRig(t, setup{capacity: 64, failures: endless, work: func(w *work) {
		mu.Lock()
		script := scripts[w.runID]
		mu.Unlock()
		for _, step := range script {
			w.step(step)
		}
		w.hangup = true
	}})
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	for batch := 0; batch < rounds; batch += 25 {
		var wg sync.WaitGroup
		for i := batch; i < batch+25; i++ {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			script := []int{0}
			if rng.IntN(8) == 0 {
				script = nil
			}
			for range 1 + rng.IntN(6) {
				script = append(script, rng.IntN(steps))
			}
			id := fmt.Sprintf("run-%d", i)
			mu.Lock()
			scripts[id] = script
			mu.Unlock()
			wg.Go(func() {
				c := &recorder{}
				o := r.outcome(r.submit(r.tunnel(id, ""), c))
				if whole := wholeBy(script); o.OK() != whole || (c.ends == 1) != whole || c.ends > 1 {
					t.Errorf("script %v: %v, finished %d times", script, o.Failure, c.ends)
				}
			})
		}
		wg.Wait()
	}
	r.idle()
	for i := range rounds {
		r.once(fmt.Sprintf("run-%d", i))
	}
}

const steps = 7

// step sends the frame of a random script: accepted, head, body, usage, end, error, rejected.
func (w *work) step(n int) {
	switch n {
	case 0:
		w.accept()
	case 1:
		w.head(200)
	case 2:
		w.body("x")
	case 3:
		w.usage(1, 1)
	case 4:
		w.end(w.bodies)
	case 5:
		w.fail(execution.CodeUpstreamError, false)
	case 6:
		w.reject(execution.CodeBadRequest, true)
		w.ended = false
	}
}

// wholeBy is the grammar, written down a second time.
func wholeBy(script []int) bool {
	text := ""
	for _, s := range script {
		text += string("AHBUEFR"[s])
	}
	rest, ok := strings.CutPrefix(text, "AH")
	if !ok {
		return false
	}
	rest = strings.TrimLeft(rest, "B")
	rest = strings.TrimLeft(rest, "U")
	return strings.HasPrefix(rest, "E")
}

// CA-05: a cancel that was accepted ends in exactly one cancelled, however early it comes, and the node starts nothing
// after it without being told.
func TestCancelAtAnyMoment(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := newRig(t, setup{capacity: 3, route: ", queue: {depth: 1000}", work: func(w *work) {
		w.accept()
		w.head(200)
		for range 5 {
			pause(w, time.Millisecond)
			w.body("x")
		}
		w.end(5)
	}})
	rounds := 500
	if testing.Short() {
		rounds = 60
	}
	slots := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i := range rounds {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			id := fmt.Sprintf("run-%d", i)
			p := r.submit(r.tunnel(id, "body"), &recorder{})
			r.poll("live", func() bool { _, known := r.svc.runs.find(id); return known })
			<-time.After(time.Duration(rng.IntN(20_000)) * time.Microsecond)
			result := r.svc.Cancel(id, execution.CauseAPI)
			o := r.outcome(p)
			switch {
			case result == Cancelling && code(o) != execution.CodeCancelled,
				result == AlreadyEnded && !o.OK(),
				result == NotFound:
				t.Errorf("%s: cancel %v, outcome %v", id, result, o.Failure)
			}
			if (p.ends == 1) != o.OK() {
				t.Errorf("%s: finished %d times, outcome %v", id, p.ends, o.Failure)
			}
		})
	}
	wg.Wait()
	r.idle()
}

// CA-07: cancelling one run at its very end touches nobody else, and the one has one end.
func TestCancelAtTheLastToken(t *testing.T) {
	r := newRig(t, setup{capacity: 16, work: func(w *work) { w.answer("the whole text") }})
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	for round := range rounds {
		runs := make([]*pending, 10)
		for i := range runs {
			id, c := fmt.Sprintf("run-%d-%d", round, i), &recorder{}
			if i == 3 {
				c.onBody = func([]byte) error { go r.svc.Cancel(id, execution.CauseAPI); return nil }
			}
			runs[i] = r.submit(r.tunnel(id, ""), c)
		}
		for i, p := range runs {
			o := r.outcome(p)
			whole := o.OK() && p.ends == 1 && p.text() == "the whole text"
			if !whole && (i != 3 || code(o) != execution.CodeCancelled || p.ends != 0) {
				t.Errorf("run %d: %v, finished %d times, %q", i, o.Failure, p.ends, p.text())
			}
		}
	}
	if got := r.svc.Cancel("nobody", execution.CauseAPI); got != NotFound {
		t.Errorf("unknown run: %v", got)
	}
	if got := r.svc.Cancel("run-0-0", execution.CauseAPI); got != AlreadyEnded {
		t.Errorf("old run: %v", got)
	}
	r.idle()
}

// CP-15: caller, deadline and node end a run in the same millisecond, and so does the link now and then. No panic, no
// race, no other response harmed.
func TestEverybodyEndsIt(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 64)
	r := newRig(t, setup{capacity: 32, route: ", queue: {depth: 1000}", work: func(w *work) {
		w.accept()
		w.head(200)
		w.body(text)
		pause(w, 2*time.Millisecond)
		w.end(int64(len(text)))
	}})
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	slots := make(chan struct{}, 32)
	var wg sync.WaitGroup
	for i := range rounds {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			tunnel, c := r.tunnel(fmt.Sprintf("run-%d", i), "body"), &recorder{}
			if i%2 == 0 {
				tunnel.Deadline = 4 * time.Millisecond
			}
			p := r.submit(tunnel, c)
			if i%2 == 0 {
				time.AfterFunc(4*time.Millisecond, p.leave)
			}
			o := r.outcome(p)
			if i%2 == 1 && (!o.OK() || c.text() != text) || !strings.HasPrefix(text, c.text()) {
				t.Errorf("run %d: %v, %d bytes", i, o.Failure, len(c.text()))
			}
		})
	}
	wg.Wait()
	r.idle()
}

// Fault 28: the cancel is lost with the link. The caller doesn't notice, and the place comes back with the link.
func TestCancelLostWithTheLink(t *testing.T) {
	r := newRig(t, setup{work: streams})
	p := r.submit(r.tunnel("run-1", ""), &recorder{})
	untilStreaming(r, p)
	p.leave()
	r.node("a", 1).edge.Close(transport.ReasonDead)
	if o := r.outcome(p); code(o) != execution.CodeClientGone {
		t.Errorf("%v", o.Failure)
	}
	r.idle()
}

// A cancel that comes between the last frame and the end of the response has won: the response isn't finished. The
// other way round the run has ended already.
func TestCancelAgainstCompletion(t *testing.T) {
	r := newRig(t, setup{work: func(w *work) {}})
	for _, cancelFirst := range []bool{true, false} {
		sink := &recorder{}
		tunnel := r.tunnel("run-1", "")
		job := &tunnelJob{Tunnel: tunnel, sink: sink, route: tunnel.Route}
		run := r.svc.newRun(context.Background(), job, 0, Outcome{RunID: tunnel.RunID})
		a := &attempt{run: run} // at its node's last word
		if cancelFirst != (cancelFirst && run.cancel(execution.CauseAPI)) {
			t.Fatal("the first cancel was refused")
		}
		job.end(a, &pb.TunnelEnd{})
		if !cancelFirst && run.cancel(execution.CauseAPI) {
			t.Error("a run that is complete was cancelled")
		}
		if o := run.finish(); o.OK() == cancelFirst || sink.ends > 0 == cancelFirst {
			t.Errorf("cancel first %v: %v, finished %d times", cancelFirst, o.Failure, sink.ends)
		}
	}
}
