package service

import (
	"testing"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// CP-18: what another node, another attempt or an older connection says of a run changes nothing of it.
func TestStrangersWords(t *testing.T) {
	r := newRig(t, setup{nodes: []string{"a", "b"}, work: says})
	spec := r.inBackground("run-1")
	spec.Node = "a"
	h := r.start(spec, &listener{})
	heardSomething(r, h)
	cut(r, h)
	r.untilState("run-1", StateDetached)
	r.idle()
	b := r.node("b", 1)
	b.far.SendReady(func() *pb.Ready { return &pb.Ready{Running: []*pb.RunningExecution{running("run-1", 1)}} })
	b.far.SendRunEnded(end("run-1", 1, statusComplete, 0))
	b.awaitAck("run-1") // so that it stops repeating it
	a := r.join("a", 2, 4, says)
	a.far.SendRunEnded(end("run-1", 2, statusComplete, 0))
	a.awaitAck("run-1")
	r.svc.Adopted("a", 1, []*pb.RunningExecution{running("run-1", 1)}) // not the current connection
	if s := r.stateOf("run-1"); s != StateDetached {
		t.Errorf("the run is %s", s)
	}
	r.svc.Cancel("run-1", execution.CauseAPI)
	if o := r.result(h); code(o) != execution.CodeCancelled {
		t.Errorf("%+v", o)
	}
	// Nor does another node end what it says it has.
	b.far.SendReady(func() *pb.Ready { return &pb.Ready{Running: []*pb.RunningExecution{running("run-1", 1)}} })
	b.noCancel("run-1")
}

// noCancel checks that the node was told to cancel nothing, after whatever was on its way.
func (n *fakeNode) noCancel(runID string) {
	n.rig.Helper()
	n.far.SendRunEnded(end("barrier-"+n.id, 1, statusComplete, 0))
	n.awaitAck("barrier-" + n.id)
	if n.cancelCount() != 0 {
		n.rig.Errorf("%s was told to cancel %s", n.id, runID)
	}
}

// The same by itself: whose word counts.
func TestWhoseWordCounts(t *testing.T) {
	at := func() *whereabouts {
		w := &whereabouts{}
		w.init(execution.KindRun)
		w.placed(&admission.Grant{Place: admission.Place{Node: "a", Adapter: "p"}, Generation: 5}, 2, execution.KindRun)
		return w
	}
	for _, c := range []struct {
		node       string
		generation uint64
		attempt    uint32
		hear       bool
		adopt      bool
	}{
		{"a", 5, 2, true, false}, {"a", 6, 2, true, true}, {"a", 4, 2, false, false},
		{"b", 6, 2, false, false}, {"a", 6, 1, false, false}, {"a", 6, 3, false, false},
	} {
		if got := at().hear(c.node, c.generation, end("x", c.attempt, statusComplete, 0)); got != c.hear {
			t.Errorf("%+v: heard %v", c, got)
		}
		if got, late := at().adopt(nil, c.node, c.generation, c.attempt); got != c.adopt || late {
			t.Errorf("%+v: adopted %v", c, got)
		}
	}
	w := at()
	w.hear("a", 5, end("x", 2, statusComplete, 0))
	if w.hear("a", 6, end("x", 2, statusError, 0)) {
		t.Error("a second word on the end counts")
	}
	w.placed(&admission.Grant{Place: admission.Place{Node: "a", Adapter: "p"}, Generation: 5}, 3, execution.KindRun)
	if end, home, _ := w.away(); end != nil || home != nil {
		t.Error("the end of an attempt is that of the next")
	}
	w.leave()
	if adopted, late := w.adopt(nil, "a", 6, 3); adopted || !late {
		t.Error("a run whose driver has left was adopted")
	}
}

// Another node's word on the end doesn't start the wait for the terminal either.
func TestStrangersEnd(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		r := newRig(t, setup{nodes: []string{"a", "b"}, service: terminalSoon, work: func(w *work) {
			w.accept()
			w.node.rig.node("b", 1).noCancel("run-1") // b has said its word
			pause(w, 3*short)
			w.complete("stop")
		}})
		spec := r.inBackground("run-1")
		spec.Node = "a"
		h := r.start(spec, &listener{})
		r.poll("sent", func() bool { v, _ := r.svc.Run("run-1"); return v.Node == "a" })
		r.node("b", 1).far.SendRunEnded(end("run-1", 1, statusComplete, 0))
		if o := r.result(h); !o.OK() {
			t.Errorf("%+v", o)
		}
	})
}

// An adopted run that fails by its node's word, or that the edge leaves behind, needs no cancel.
func TestAdoptedNeedsNoCancel(t *testing.T) {
	for _, departs := range []bool{false, true} {
		r, h := away(t, Config{})
		n := r.join("a", 2, 4, says, running("run-1", 1))
		r.untilState("run-1", StateRunning)
		want := execution.CodeUpstreamError
		if departs {
			want = execution.CodeEdgeDraining
			r.svc.Depart()
		} else {
			n.far.SendRunEnded(end("run-1", 1, statusError, want))
		}
		if o := r.result(h); code(o) != want {
			t.Errorf("%+v", o)
		}
		n.noCancel("run-1")
		n.leave()
	}
}

// The detached limit counts from each loss anew, and not while the node has the run.
func TestDetachedLimit(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		r, h := away(t, Config{DetachedLimit: 4 * short})
		n := r.join("a", 2, 4, says, running("run-1", 1))
		r.untilState("run-1", StateRunning)
		<-time.After(6 * short)
		if s := r.stateOf("run-1"); s != StateRunning {
			t.Errorf("an adopted run is %s", s)
		}
		n.leave()
		since := time.Now()
		if o := r.result(h); code(o) != execution.CodeNodeLost {
			t.Errorf("%+v", o)
		}
		if took := time.Since(since); took != 4*short {
			t.Errorf("the limit took %v", took)
		}
		r.once("run-1")
	})
}

// A node that comes back without a background run, and doesn't say how it ended, has lost it: a node that was killed
// before it could write it down. Its caller isn't left waiting for the node to come back once more. An end that comes
// late counts.
func TestNodeComesBackWithoutTheRun(t *testing.T) {
	patience.Alone(t, func(t *testing.T) {
		for name, say := range map[string]func(n *fakeNode){
			"says nothing": nil,
			"says its end": func(n *fakeNode) { n.far.SendRunEnded(end("run-1", 1, statusComplete, 0)) },
		} {
			t.Run(name, func(t *testing.T) {
				patience.Bubble(t, func(t *testing.T) {
					r, h := away(t, Config{DetachedLimit: time.Hour, TerminalWait: 4 * short})
					n := r.join("a", 2, 4, says)
					if say != nil {
						say(n)
					}
					o := r.result(h)
					if want := map[bool]execution.Code{false: execution.CodeNodeLost, true: execution.CodeOK}[say != nil]; code(o) != want {
						t.Errorf("%v, want %v", o.Failure, want)
					}
					r.once("run-1")
					r.idle()
				})
			})
		}
	})
}
