package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// started returns an adapter that says when it was called and then hangs until its cancel.
func started() (*nodetest.Adapter, chan struct{}) {
	called := make(chan struct{}, 1000)
	return &nodetest.Adapter{OnTunnel: func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		called <- struct{}{}
		return nodetest.Hang(ctx, req, sink)
	}}, called
}

// §2.D CancelRequest while executing, for every cause: the adapter's context ends with the cause, the place is freed,
// RunEnded says cancelled, and the terminal is one error with the cause's code. (CA-01, CA-02 at the node.)
func TestCancelRequest(t *testing.T) {
	for cause := execution.CauseClientGone; cause <= execution.CauseCredentialRevoked; cause++ {
		adapter, called := started()
		r := newRig(t, adapter, timers(func(t *node.Timers) { t.AdapterStop = 2 * nodetest.Limit })) // nothing waits for this
		tn := r.Start("r1")
		nodetest.Receive(t, "the adapter is called", called)
		r.Link.SendCancel("r1", cause)
		if got := r.CancelResult("r1"); got.GetResult() != pb.CancelOutcome_CANCEL_OUTCOME_CANCELLING {
			t.Errorf("cancel result = %v", got)
		}
		e := r.RunEnd("r1")
		if e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED || e.GetCode() != pb.FailureCode(cause.Code()) {
			t.Errorf("%v: RunEnd = %v", cause, e)
		}
		if got := tn.Collect(); got.Kinds != "ax" || got.Error.GetCode() != pb.FailureCode(cause.Code()) {
			t.Errorf("%v: got %q %v %v", cause, got.Kinds, got.Error, got.Err)
		}
		r.atRest()
	}
}

// §2.D: EOF or reset with the link alive is a cancel, without any CancelRequest.
func TestStreamCloseCancels(t *testing.T) {
	adapter, called := started()
	r := newRig(t, adapter)
	tn := r.Start("r1")
	nodetest.Receive(t, "the adapter is called", called)
	tn.Close()
	e := r.RunEnd("r1")
	if e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED || e.GetCode() != pb.FailureCode_FAILURE_CODE_CLIENT_GONE {
		t.Errorf("RunEnd = %v", e)
	}
	r.atRest()
}

// CA-05: a cancel that overtakes its open leaves a tombstone; the open hits it and nothing starts.
func TestCancelOvertakesTheRequest(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	for i := range 50 {
		id := fmt.Sprint("r", i)
		r.Link.SendCancel(id, execution.CauseClientGone)
		if got := r.CancelResult(id); got.GetResult() != pb.CancelOutcome_CANCEL_OUTCOME_NOT_FOUND {
			t.Fatalf("cancel of what isn't there: %v", got)
		}
		r.rejects(r.Start(id), execution.CodeCancelled)
	}
	if got := r.Start("other").Collect(); got.Kinds != "ahbe" {
		t.Errorf("another run: %q %v", got.Kinds, got.Err)
	}
	r.RunEnd("other")
	r.atRest()
}

// CA-05: open and cancel back to back, in whatever order they arrive: one end, and no provider call after it.
func TestCancelRacesTheOpen(t *testing.T) {
	adapter := &nodetest.Adapter{OnTunnel: nodetest.Hang}
	r := newRig(t, adapter, capacity(1))
	for i := range 300 {
		id := fmt.Sprint("r", i)
		var both sync.WaitGroup
		both.Go(func() { r.Link.SendCancel(id, execution.CauseClientGone) })
		tn := r.Start(id)
		both.Wait()
		got := tn.Collect()
		switch got.Kinds {
		case "r":
			if got.Rejected.GetFailure().GetCode() != pb.FailureCode_FAILURE_CODE_CANCELLED {
				t.Fatalf("round %d: %v", i, got.Rejected)
			}
		case "ax":
			if got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_CLIENT_GONE {
				t.Fatalf("round %d: %v", i, got.Error)
			}
			r.RunEnd(id)
		default:
			t.Fatalf("round %d: got %q %v", i, got.Kinds, got.Err)
		}
		if n := r.RunEnds(id); n != 0 {
			t.Fatalf("round %d: %d more RunEnds", i, n)
		}
	}
	r.atRest()
}

// CA-07: ten runs in parallel, the cancel of one meets its last token: it has one terminal, the others are whole.
func TestCancelRacesCompletion(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 5
	}
	last := make(chan struct{})
	var meet sync.Mutex // guards last
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		if err := sink.Head(200, http.Header{}); err != nil {
			return err
		}
		for range 5 {
			if err := sink.Body([]byte("token ")); err != nil {
				return err
			}
		}
		meet.Lock()
		gate := last
		meet.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return sink.Body([]byte("last"))
	}}, capacity(10))
	for round := range rounds {
		meet.Lock()
		last = make(chan struct{})
		gate := last
		meet.Unlock()
		ids := make([]string, 10)
		tunnels := make([]*nodetest.Tunnel, 10)
		for i := range ids {
			ids[i] = fmt.Sprintf("r%d-%d", round, i)
			tunnels[i] = r.Start(ids[i])
		}
		for _, tn := range tunnels {
			tn.Accepted()
		}
		var both sync.WaitGroup
		both.Go(func() { close(gate) })
		both.Go(func() { r.Link.SendCancel(ids[3], execution.CauseAPI) })
		both.Wait()
		for i, tn := range tunnels {
			got := tn.Collect()
			whole := string(got.Body) == "token token token token token last" && got.End != nil
			if i != 3 && !whole || i == 3 && !whole && got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_CANCELLED {
				// A cancel that comes after the end closes the lingering stream: then its reader was cut, not answered.
				if i != 3 || !errors.Is(got.Err, io.EOF) {
					t.Fatalf("round %d run %d: %q %q %v %v", round, i, got.Kinds, got.Body, got.Error, got.Err)
				}
			}
			e := r.RunEnd(ids[i])
			if whole && e.GetStatus() != pb.RunStatus_RUN_STATUS_COMPLETE && got.Err == nil {
				t.Fatalf("round %d run %d: the caller got a whole answer, RunEnd says %v", round, i, e)
			}
			tn.Close()
		}
	}
	r.atRest()
}

// Faults row 27: a cancel of an unknown or of an old run touches nobody; of a run whose answer is still being taken it
// says so and closes the stream.
func TestCancelOfUnknownOldAndLingering(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		select {
		case <-release:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return nodetest.Answer(sink, "ok")
	}})
	bystander := r.Start("bystander")
	bystander.Accepted()
	if got := r.cancel("nobody"); got != pb.CancelOutcome_CANCEL_OUTCOME_NOT_FOUND {
		t.Errorf("unknown: %v", got)
	}
	if n := r.seen.lateOf("cancel"); n != 1 {
		t.Errorf("%d late cancels counted, want 1", n)
	}
	lingering := r.Start("lingering")
	lingering.Accepted()
	close(release)
	r.RunEnd("lingering")
	if got := r.cancel("lingering"); got != pb.CancelOutcome_CANCEL_OUTCOME_ALREADY_ENDED {
		t.Errorf("lingering: %v", got)
	}
	lingering.Close()
	if got := bystander.Collect(); got.Kinds != "hbe" {
		t.Errorf("the bystander got %q %v", got.Kinds, got.Err)
	}
	nodetest.Eventually(t, "nothing lingers", func() bool { return r.Snapshot().Lingering == 0 })
	if got := r.cancel("lingering"); got != pb.CancelOutcome_CANCEL_OUTCOME_NOT_FOUND {
		t.Errorf("old: %v", got)
	}
	r.RunEnd("bystander")
	r.atRest()
}

func (r *rig) cancel(runID string) pb.CancelOutcome {
	r.t.Helper()
	r.session.Cancel(&pb.CancelRequest{Type: pb.CancelType_CANCEL_TYPE_CANCEL_RUN, RunId: runID, Cause: pb.CancelCause_CANCEL_CAUSE_API})
	return r.CancelResult(runID).GetResult()
}

// §2.D deadline: the node cancels by itself, and its terminal says why.
func TestDeadline(t *testing.T) {
	adapter, _ := started()
	r := newRig(t, adapter)
	open := r.TunnelOpen("r1")
	open.GetTunnel().DeadlineMs = 30
	got := r.Open(open).End().Collect()
	if got.Kinds != "ax" || got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_DEADLINE {
		t.Errorf("got %q %v", got.Kinds, got.Error)
	}
	if e := r.RunEnd("r1"); e.GetCode() != pb.FailureCode_FAILURE_CODE_DEADLINE || e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED {
		t.Errorf("RunEnd = %v", e)
	}
	r.atRest()
}

// flood writes an answer until nobody takes it; it says on full that it was stopped by the cancel.
func flood(full chan<- error) func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error {
	return func(ctx context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		if err := sink.Head(200, nil); err != nil {
			return err
		}
		for {
			if err := sink.Body(make([]byte, 64<<10)); err != nil {
				full <- err
				return err
			}
		}
	}
}

// §2.D write blocked on a full window: the provider isn't read meanwhile. A cancel wakes the adapter and frees the
// place at once, although the edge's reader takes nothing; what it then reads is in order and ends with the terminal.
func TestCancelWhileTheWindowIsFull(t *testing.T) {
	for _, byDeadline := range []bool{false, true} {
		patience.Widen(t, 300*time.Millisecond, func(deadline time.Duration) (keptUp bool) {
			full := make(chan error, 1)
			r := newRig(t, &nodetest.Adapter{OnTunnel: flood(full)},
				timers(func(t *node.Timers) { t.AdapterStop = 2 * nodetest.Limit })) // nothing waits for this
			open := r.TunnelOpen("r1")
			want := pb.FailureCode_FAILURE_CODE_CLIENT_SLOW
			if byDeadline {
				open.GetTunnel().DeadlineMs, want = deadline.Milliseconds(), pb.FailureCode_FAILURE_CODE_DEADLINE
			}
			tn := r.Open(open).End()
			waits := func() bool { return r.mux.Status().Pending == 0 && r.mux.Status().BytesOut > 1<<20 }
			nodetest.Eventually(t, "the adapter waits for the window", func() bool { return waits() || byDeadline && r.inFlight() == 0 && len(full) > 0 })
			if !waits() {
				return false
			}
			if !byDeadline {
				r.Link.SendCancel("r1", execution.CauseClientSlow)
			}
			if e := r.RunEnd("r1"); e.GetCode() != want || e.GetAbandoned() {
				t.Errorf("RunEnd = %v", e)
			}
			nodetest.Receive(t, "the adapter is woken", full)
			if n := r.inFlight(); n != 0 {
				t.Errorf("%d places held", n)
			}
			got := tn.Collect()
			if got.Error.GetCode() != want || len(got.Body) < 1000<<10 || got.Err != nil {
				t.Errorf("got %d bytes, %v, %v", len(got.Body), got.Error, got.Err)
			}
			r.atRest()
			return true
		})
	}
}

// OL-10, TU-17 and faults rows 1 and 28 at the node: the link is lost; the provider is cancelled within a second, the
// place is free, and nothing is sent twice.
func TestLinkLostCancels(t *testing.T) {
	adapter, called := started()
	r := newRig(t, adapter)
	for i := range 4 {
		r.Start(fmt.Sprint("r", i))
		nodetest.Receive(t, "the adapter is called", called)
	}
	r.Link.Close(transport.ReasonLost)
	nodetest.Eventually(t, "every provider connection is closed", func() bool { _, now := adapter.Peak(); return now == 0 })
	r.atRest()
	nodetest.Eventually(t, "all are told", func() bool { return len(r.seen.all()) == 4 })
	for _, e := range r.seen.all() {
		if e.Status != execution.StatusCancelled || e.Code != execution.CodeNodeLost {
			t.Errorf("ended %+v", e)
		}
	}
}

// An execution that is still ending when the node is back is reported in Ready and its end goes over the new
// connection; one that ended in between isn't mentioned.
func TestReconnectReportsWhatIsStillEnding(t *testing.T) {
	woken, stop := make(chan struct{}), make(chan struct{})
	called := make(chan struct{}, 2)
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(ctx context.Context, req *execution.TunnelRequest, _ execution.TunnelSink) error {
		called <- struct{}{}
		<-ctx.Done()
		if req.Query == "slow" {
			close(woken)
			<-stop // an adapter that takes its time to close its connection
		}
		return context.Cause(ctx)
	}})
	slow := r.TunnelOpen("slow")
	slow.GetTunnel().Query, slow.Attempt = "slow", 3
	r.Open(slow).End()
	r.Start("quick")
	for range 2 {
		nodetest.Receive(t, "the adapter is called", called)
	}
	r.Link.Close(transport.ReasonLost)
	nodetest.Receive(t, "the slow one is cancelled", woken)
	nodetest.Eventually(t, "the quick one ended", func() bool { return len(r.Snapshot().Running) == 1 })
	ready := r.connect(8, &pb.NodeConfigPayload{Projection: 1, Adapters: []*pb.AdapterConfig{
		{Name: "a", Kind: "fake", MaxConcurrency: 4, AdapterRevision: 1}}})
	running := ready.GetRunning()
	if len(running) != 1 || running[0].GetRunId() != "slow" || running[0].GetAttempt() != 3 || !running[0].GetEnding() || running[0].GetAdapter() != "a" {
		t.Errorf("running = %v", running)
	}
	if ready.GetAdapters()[0].GetInFlight() != 1 {
		t.Errorf("adapters = %v", ready.GetAdapters())
	}
	r.rejects(r.Start("slow"), execution.CodeDuplicateRun)
	close(stop)
	if e := r.RunEnd("slow"); e.GetAttempt() != 3 || e.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_LOST {
		t.Errorf("RunEnd = %v", e)
	}
	if n := r.RunEnds("quick"); n != 0 {
		t.Error("the end of a run that the edge had forgotten was sent")
	}
	r.atRest()
}

// §2.D: an adapter that ignores its cancel is given up: RunEnded(abandoned), one terminal, and its place is lost until
// it returns after all.
func TestAbandonedAdapter(t *testing.T) {
	stop, called := make(chan struct{}), make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(ctx context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		if err := sink.Head(200, nil); err != nil {
			return err
		}
		close(called)
		<-stop
		if err := sink.Body([]byte("too late")); err == nil {
			t.Error("an abandoned adapter can still emit")
		}
		return nil
	}}, timers(func(t *node.Timers) { t.AdapterStop = soon }), capacity(2))
	tn := r.Start("r1")
	nodetest.Receive(t, "the adapter is called", called)
	r.Link.SendCancel("r1", execution.CauseAPI)
	e := r.RunEnd("r1")
	if e.GetStatus() != pb.RunStatus_RUN_STATUS_ABANDONED || !e.GetAbandoned() || e.GetCode() != pb.FailureCode_FAILURE_CODE_CANCELLED {
		t.Errorf("RunEnd = %v", e)
	}
	if got := tn.Collect(); got.Kinds != "ahx" || got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_CANCELLED {
		t.Errorf("got %q %v", got.Kinds, got.Error)
	}
	first := r.Status("capacity 1", func(s *pb.NodeStatus) bool { return s.GetAdapters()[0].GetCapacity() == 1 })
	r.Await("the event", func(m *pb.NodeControl) bool {
		return m.GetEvent().GetKind() == pb.EventKind_EVENT_KIND_CAPACITY_DRIFT && m.GetEvent().GetAdapter() == "a"
	})
	close(stop)
	second := r.Status("capacity 2", func(s *pb.NodeStatus) bool { return s.GetAdapters()[0].GetCapacity() == 2 })
	if second.GetNumber() <= first.GetNumber() {
		t.Errorf("status numbers %d, %d don't grow", first.GetNumber(), second.GetNumber())
	}
	if n := r.RunEnds("r1"); n != 0 {
		t.Errorf("%d more RunEnds", n)
	}
	if n := r.seen.lateOf("emit"); n != 1 {
		t.Errorf("%d late emissions counted, want 1", n)
	}
	r.atRest()
}
