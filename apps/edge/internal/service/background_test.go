package service

import (
	"context"
	"slices"
	"strings"
	"testing"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

const (
	statusComplete  = pb.RunStatus_RUN_STATUS_COMPLETE
	statusError     = pb.RunStatus_RUN_STATUS_ERROR
	statusCancelled = pb.RunStatus_RUN_STATUS_CANCELLED
)

// away is a rig whose node has a background run "run-1" and has lost its connection.
func away(t *testing.T, cfg Config) (*rig, *hearing) {
	t.Helper()
	r := newRig(t, setup{service: cfg, work: says})
	h := r.start(r.inBackground("run-1"), &listener{})
	heardSomething(r, h)
	cut(r, h)
	r.untilState("run-1", StateDetached)
	r.idle()
	return r, h
}

// protocol.md 8 "background runs and reconnect": a link is cut with a background and a foreground run on it. The
// foreground run is lost. When the node is back, the background run holds its place and nothing else does; its end
// arrives exactly once, however often the node reports it, and each report is confirmed.
func TestReconnect(t *testing.T) {
	r := newRig(t, setup{work: says})
	back, fore := r.start(r.inBackground("back"), &listener{}), r.start(r.spec("fore"), &listener{})
	heardSomething(r, back)
	heardSomething(r, fore)
	cut(r, nil)
	if o := r.result(fore); code(o) != execution.CodeNodeLost {
		t.Errorf("foreground: %v", o.Failure)
	}
	r.untilState("back", StateDetached)
	r.idle() // the fence has freed every place

	n := r.join("a", 2, 4, says, running("back", 1))
	r.untilState("back", StateRunning)
	if v, _ := r.svc.Run("back"); v.Generation != 2 || !v.Live {
		t.Errorf("%+v", v)
	}
	if p := r.sched.Snapshot().Places[0]; p.InFlight != 1 || p.Adopted != 1 || p.Generation != 2 {
		t.Errorf("place %+v, want the adopted run only", p)
	}
	for range 3 {
		n.far.SendRunEnded(end("back", 1, statusComplete, 0))
	}
	o := r.result(back)
	if !o.OK() || o.Usage.Output == nil || *o.Usage.Output != 42 || back.text() != "one" {
		t.Errorf("background: %+v, answer %q", o, back.text())
	}
	n.await("three confirmations", func() bool { return slices.Equal(n.acked, []string{"back", "back", "back"}) })
	r.idle()
	r.once("back")
	if n.cancelCount() != 0 {
		t.Error("the node was sent a cancel")
	}
}

// A caller that leaves doesn't end a background run, and one that never stayed can start one.
func TestCallerLeavesBackground(t *testing.T) {
	proceed := make(chan struct{})
	r := newRig(t, setup{work: after(says, func(w *work) { <-proceed; w.complete("stop") })})
	h := r.start(r.inBackground("run-1"), &listener{})
	heardSomething(r, h)
	h.leave()
	if o := r.result(h); o != nil {
		t.Errorf("outcome %+v of a run that goes on", o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	spec := r.inBackground("")
	if o := r.svc.SubmitRun(ctx, spec, nil); o != nil || spec.RunID == "" {
		t.Errorf("%+v of run %q", o, spec.RunID)
	}
	r.untilState(spec.RunID, StateRunning)
	close(proceed)
	for _, id := range []string{"run-1", spec.RunID} {
		if o := r.outcomeOf(id); !o.OK() {
			t.Errorf("%s: %v", id, o.Failure)
		}
	}
	r.idle()
}

// A follower that fails, or that is too far behind, is let go; the run isn't even slowed down.
func TestFollowers(t *testing.T) {
	text := strings.Repeat("x", 16<<10)
	r := newRig(t, setup{work: func(w *work) {
		w.accept()
		for range 2 * maxBehind / len(text) {
			w.delta(text)
		}
		w.complete("stop")
	}})
	release := make(chan struct{})
	for id, l := range map[string]*listener{
		"fails": {onEvent: func(execution.Event) error {
			return execution.Failf(execution.CodeClientGone, execution.OriginCaller, "gone")
		}},
		"stuck": {onEvent: func(execution.Event) error { <-release; return nil }},
	} {
		h := r.start(r.inBackground(id), l)
		if o := r.outcomeOf(id); !o.OK() || o.BytesOut != 2*maxBehind {
			t.Errorf("%s: %+v", id, o)
		}
		if id == "stuck" {
			close(release)
		}
		if o := r.result(h); o != nil {
			t.Errorf("%s: the follower was told %+v", id, o)
		}
	}
	r.idle()
}

// What ends a run whose node is away, and what becomes of it: the outcome is at once, and the node is told when it is
// back, on that connection, and only if it has the run still.
func TestDetachedEnds(t *testing.T) {
	patience.Alone(t, func(t *testing.T) {
		for _, c := range []struct {
			name  string
			cfg   Config
			spec  func(*RunSpec)
			do    func(r *rig)
			code  execution.Code
			cause pb.CancelCause
		}{
			{name: "cancelled", do: func(r *rig) { r.svc.Cancel("run-1", execution.CauseAPI) }, code: execution.CodeCancelled, cause: toldAPI},
			{name: "deadline", spec: func(s *RunSpec) { s.Deadline = 4 * short }, code: execution.CodeDeadline, cause: toldDeadline},
			{name: "detached limit", cfg: Config{DetachedLimit: 2 * short}, code: execution.CodeNodeLost, cause: pb.CancelCause_CANCEL_CAUSE_LINK_LOST},
		} {
			t.Run(c.name, func(t *testing.T) {
				patience.Bubble(t, func(t *testing.T) {
					r := newRig(t, setup{service: c.cfg, work: says})
					spec := r.inBackground("run-1")
					if c.spec != nil {
						c.spec(spec)
					}
					h := r.start(spec, &listener{})
					heardSomething(r, h)
					cut(r, h)
					r.poll("detached or over", func() bool { s := r.stateOf("run-1"); return s != StateRunning })
					if c.do != nil {
						c.do(r)
					}
					if o := r.result(h); code(o) != c.code {
						t.Fatalf("%+v", o)
					}
					n := r.join("a", 2, 4, says, running("run-1", 1), running("other", 1))
					if cause := n.awaitCancel("run-1"); cause != c.cause {
						t.Errorf("the node was told %v", cause)
					}
					if v, _ := r.svc.Run("run-1"); v.Live || v.Code != c.code.String() {
						t.Errorf("%+v", v)
					}
					n.far.SendRunEnded(end("run-1", 1, statusCancelled, execution.CodeCancelled))
					n.far.SendRunEnded(end("other", 1, statusComplete, 0))
					n.awaitAck("run-1")
					r.idle()
					r.once("run-1")
					if n.cancelCount() != 1 {
						t.Errorf("%d cancels", n.cancelCount())
					}
				})
			})
		}
	})
}

// A run that was adopted is cancelled on the connection that adopted it, and can be detached and adopted again.
func TestAdoptedAgain(t *testing.T) {
	r, h := away(t, Config{})
	for generation := uint64(2); generation < 5; generation++ {
		n := r.join("a", generation, 4, says, running("run-1", 1))
		r.untilState("run-1", StateRunning)
		if generation < 4 {
			n.leave()
			r.untilState("run-1", StateDetached)
			r.idle()
			continue
		}
		n.far.SendReady(func() *pb.Ready { return &pb.Ready{Running: []*pb.RunningExecution{running("run-1", 1)}} }) // a refresh
		r.svc.Cancel("run-1", execution.CauseAPI)
		if cause := n.awaitCancel("run-1"); cause != toldAPI {
			t.Errorf("the node was told %v", cause)
		}
		n.far.SendRunEnded(end("run-1", 1, statusCancelled, execution.CodeCancelled))
	}
	if o := r.result(h); code(o) != execution.CodeCancelled {
		t.Errorf("%+v", o)
	}
	r.idle()
	r.once("run-1")
}

// How a node says that a run ended is its outcome.
func TestEndedAway(t *testing.T) {
	for _, c := range []struct {
		status pb.RunStatus
		code   execution.Code
		want   execution.Code
		state  RunState
	}{
		{statusComplete, 0, execution.CodeOK, StateComplete},
		{statusError, execution.CodeUpstreamTruncated, execution.CodeUpstreamTruncated, StateError},
		{statusError, 0, execution.CodeProtocol, StateError},
		{statusCancelled, execution.CodeNodeDraining, execution.CodeNodeDraining, StateError},
		{statusCancelled, 0, execution.CodeCancelled, StateCancelled},
		{pb.RunStatus_RUN_STATUS_ABANDONED, execution.CodeDeadline, execution.CodeDeadline, StateError},
	} {
		r, h := away(t, Config{})
		n := r.join("a", 2, 4, says)
		n.far.SendRunEnded(end("run-1", 1, c.status, c.code)) // it ended while nobody listened: the node doesn't run it any more
		o := r.result(h)
		if code(o) != c.want || o.Usage.Output == nil || r.stateOf("run-1") != c.state {
			t.Errorf("%v %v: %+v, %s", c.status, c.code, o, r.stateOf("run-1"))
		}
		n.awaitAck("run-1")
		r.once("run-1")
	}
}

// A new connection may speak before the driver has noticed that the old one is over.
func TestNewConnectionIsFaster(t *testing.T) {
	for _, ended := range []bool{false, true} {
		r := newRig(t, setup{work: says})
		h := r.start(r.inBackground("run-1"), &listener{})
		heardSomething(r, h)
		old := r.node("a", 1)
		n := r.join("a", 2, 4, says, running("run-1", 1))
		r.poll("told of the new one", func() bool { v, _ := r.svc.Run("run-1"); return v.Generation == 2 })
		if ended {
			n.far.SendRunEnded(end("run-1", 1, statusComplete, 0))
			n.awaitAck("run-1")
		}
		old.leave()
		if !ended {
			r.poll("adopted only", func() bool { return r.held() == 1 })
			n.far.SendRunEnded(end("run-1", 1, statusComplete, 0))
		}
		if o := r.result(h); !o.OK() || h.text() != "one" {
			t.Errorf("ended %v: %+v", ended, o)
		}
		r.idle()
		r.once("run-1")
	}
}

// The end is confirmed before the terminal is here, and then the link is cut: the node won't say it again.
func TestConfirmedThenCut(t *testing.T) {
	r := newRig(t, setup{work: after(says, reportsEnd)})
	h := r.start(r.inBackground("run-1"), &listener{})
	r.node("a", 1).awaitAck("run-1")
	heardSomething(r, h)
	cut(r, h)
	if o := r.result(h); !o.OK() || h.text() != "one" {
		t.Errorf("%+v", o)
	}
	r.once("run-1")
}

// What the node can't have as a whole can't go on there.
func TestCutInTheMiddleOfTheInput(t *testing.T) {
	r := newRig(t, setup{work: func(w *work) { w.accept(); <-w.node.far.Down() }})
	spec := r.inBackground("run-1")
	spec.Input.Messages[0].Parts[0].Text = strings.Repeat("x", 4<<20)
	h := r.start(spec, &listener{})
	untilAccepted(r, nil)
	cut(r, h)
	if o := r.result(h); code(o) != execution.CodeNodeLost {
		t.Errorf("%+v", o)
	}
	r.idle()
}

// After a restart the edge learns from its nodes what still runs and what has ended. Both are in the table, the first
// can be cancelled, and nothing is left when they are over.
func TestEdgeRestart(t *testing.T) {
	r := newRig(t, setup{manual: true, work: says})
	n := r.join("a", 7, 4, says, running("runs", 1), running("other", 3),
		&pb.RunningExecution{RunId: "foreground", Attempt: 1, Adapter: "p"}, running("not an id", 1))
	r.untilState("runs", StateRecovered)
	if v, _ := r.svc.Run("runs"); !v.Live || v.Node != "a" || v.Adapter != "p" || !v.Background {
		t.Errorf("%+v", v)
	}
	ended := end("ended", 1, statusError, execution.CodeUpstreamTruncated)
	ended.StartedMs, ended.EndedMs = 1_700_000_000_000, 1_700_000_060_000
	n.far.SendRunEnded(ended)
	n.far.SendRunEnded(ended)
	n.await("two confirmations", func() bool { return slices.Equal(n.acked, []string{"ended", "ended"}) })
	v, ok := r.svc.Run("ended")
	if !ok || v.State != StateRecovered || v.Live || v.Code != "upstream_truncated" || v.DurationMS != 60_000 || *v.Usage.Output != 42 {
		t.Errorf("%+v", v)
	}
	if o, _ := r.ask(r.spec("ended")); code(o) != execution.CodeDuplicateRun {
		t.Errorf("%v", o.Failure)
	}
	if got := r.svc.Cancel("runs", execution.CauseAPI); got != Cancelling {
		t.Errorf("cancel: %v", got)
	}
	n.awaitCancel("runs")
	n.far.SendRunEnded(end("runs", 1, statusCancelled, execution.CodeCancelled))
	n.leave()
	r.untilState("other", StateDetached)
	n = r.join("a", 8, 4, says, running("other", 3))
	n.far.SendRunEnded(end("other", 3, statusComplete, 0))
	for id, want := range map[string]execution.Code{"runs": execution.CodeCancelled, "other": execution.CodeOK} {
		if o := r.outcomeOf(id); code(&o) != want || r.stateOf(id) != StateRecovered {
			t.Errorf("%s: %+v, %s", id, o, r.stateOf(id))
		}
	}
	r.poll("the table is empty of live runs", func() bool { return r.svc.Live() == 0 })
	if _, known := r.svc.Run("foreground"); known {
		t.Error("a foreground run was recovered")
	}
}

// An edge that drains doesn't wait for background runs and doesn't end them: the node sees its link go and goes on.
func TestDepart(t *testing.T) {
	r := newRig(t, setup{work: says})
	h := r.start(r.inBackground("run-1"), &listener{})
	heardSomething(r, h)
	n := r.node("a", 1)
	r.svc.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), patience.Limit)
	defer cancel()
	if err := r.svc.Wait(ctx); err != nil {
		t.Error(err)
	}
	r.svc.CancelAll(execution.CauseEdgeDraining)
	if s := r.stateOf("run-1"); s != StateRunning {
		t.Errorf("the run is %s", s)
	}
	r.svc.Depart()
	if o := r.result(h); code(o) != execution.CodeEdgeDraining {
		t.Errorf("%+v", o)
	}
	r.svc.Join()
	// What comes on the stream is the end of the link, not an end of the stream.
	if status := n.far.Status(); status.OpenStreams != 1 {
		t.Errorf("%d streams are open at the node", status.OpenStreams)
	}
	n.leave()
	if n.cancelCount() != 0 {
		t.Error("the node was sent a cancel")
	}
}
