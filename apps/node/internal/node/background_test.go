package node_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/store"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// openJournal opens the journal in dir; it is written until the test, or close, ends.
func openJournal(t testing.TB, dir string) (j *store.Journal, closed func()) {
	t.Helper()
	j, err := store.Open(context.Background(), store.Config{Dir: dir, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = j.Run(context.Background()) }()
	closed = sync.OnceFunc(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	t.Cleanup(closed)
	return j, closed
}

func recorded(j *store.Journal) func(*setup) { return func(s *setup) { s.journal = j } }

// steady is an adapter that emits a delta for each value of the channel, until it is closed. The target "hang" hangs.
func steady(next <-chan string) *nodetest.Adapter {
	return &nodetest.Adapter{OnExecute: func(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
		if req.Target == "hang" {
			return nodetest.HangRun(ctx, req, emit)
		}
		for {
			select {
			case <-ctx.Done():
				return execution.Completion{}, context.Cause(ctx)
			case text, ok := <-next:
				if !ok {
					return execution.Completion{FinishReason: "stop", Usage: counts(1, 2)}, nil
				}
				if err := emit(execution.Event{Kind: execution.EventDelta, Text: text}); err != nil {
					return execution.Completion{}, err
				}
			}
		}
	}}
}

// §8 "background runs and reconnect": a cut link ends the foreground run; the background run goes on, to nowhere, is
// named in Ready, and its end is told on each new connection until it is acknowledged, once on each. OL-10.
func TestBackgroundRunSurvivesItsLink(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	next := make(chan string)
	r := newRig(t, steady(next), recorded(j))
	bg, fg := r.StartRun("bg", nodetest.Background, func(q *pb.RunRequest) { q.SessionId = "s-1" }), r.StartRun("fg", func(q *pb.RunRequest) { q.Target = "hang" })
	bg.Accepted()
	fg.Accepted()
	next <- "before"
	ready := r.again()
	nodetest.Eventually(t, "the foreground run has ended", func() bool { return len(r.Snapshot().Running) == 1 })
	running := ready.GetRunning()
	if i := len(running) - 1; i < 0 || running[0].GetRunId() != "bg" || !running[0].GetBackground() || running[0].GetEnding() || running[0].GetAttempt() != 1 {
		t.Errorf("running = %v", running)
	}
	if n := r.inFlight(); n != 1 {
		t.Errorf("%d places held", n)
	}
	for range 100 { // nobody reads, and nothing waits
		next <- "after"
	}
	close(next)
	check := func(e *pb.RunEnd) {
		t.Helper()
		if !e.GetBackground() || e.GetStatus() != pb.RunStatus_RUN_STATUS_COMPLETE || e.GetUsage().GetOutput() != 2 || e.GetAttempt() != 1 || e.GetBytesOut() != 6+500 {
			t.Errorf("RunEnd = %v", e)
		}
	}
	check(r.RunEnd("bg"))
	if n := r.inFlight(); n != 0 {
		t.Errorf("%d places held after RunEnded", n)
	}
	for range 3 {
		if ready := r.again(); len(ready.GetRunning()) != 0 {
			t.Errorf("running = %v", ready.GetRunning())
		}
		check(r.RunEnd("bg"))
		if got := r.cancel("bg"); got != pb.CancelOutcome_CANCEL_OUTCOME_ALREADY_ENDED {
			t.Errorf("cancel = %v", got)
		}
		r.cancel("bg") // everything before the second answer has arrived
		if n := r.RunEnds("bg"); n != 0 {
			t.Errorf("told %d more times on one connection", n)
		}
	}
	r.Link.SendRunEndedAck("bg", "unknown")
	nodetest.Eventually(t, "the end is acknowledged", func() bool { return len(j.Unreported("edge:1")) == 0 && r.Snapshot().Lingering == 0 })
	r.again()
	if got := r.cancel("bg"); got != pb.CancelOutcome_CANCEL_OUTCOME_NOT_FOUND {
		t.Errorf("cancel = %v", got)
	}
	r.cancel("bg")
	if n := r.RunEnds("bg") + r.RunEnds("fg"); n != 0 {
		t.Errorf("told %d times after the acknowledgement", n)
	}
	r.atRest()
}

// A background run whose caller reads is answered like any other.
func TestBackgroundRunWithItsLink(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	r := newRig(t, &nodetest.Adapter{}, recorded(j))
	if got := r.StartRun("r1", nodetest.Background).Collect(); got.Kinds != "asdc" {
		t.Errorf("got %q %v", got.Kinds, got.Err)
	}
	if e := r.RunEnd("r1"); !e.GetBackground() {
		t.Errorf("RunEnd = %v", e)
	}
	r.Link.SendRunEndedAck("r1")
	nodetest.Eventually(t, "the end is acknowledged", func() bool { return len(j.Unreported("edge:1")) == 0 })
	r.atRest()
}

// A link that is lost while the edge reads nothing and the window is full: the run goes on.
func TestBackgroundRunBlockedWhenItsLinkIsLost(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	stop := make(chan struct{})
	text := string(make([]byte, 8<<10))
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		for {
			select {
			case <-stop:
				return execution.Completion{FinishReason: "stop"}, nil
			default:
			}
			if err := emit(execution.Event{Kind: execution.EventDelta, Text: text}); err != nil {
				return execution.Completion{}, err
			}
		}
	}}, recorded(j))
	r.StartRun("r1", nodetest.Background)
	nodetest.Eventually(t, "the adapter waits for the window", func() bool { return r.mux.Status().Pending == 0 && r.mux.Status().BytesOut > 1<<20 })
	if ready := r.again(); len(ready.GetRunning()) != 1 {
		t.Errorf("running = %v", ready.GetRunning())
	}
	close(stop)
	if e := r.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_COMPLETE {
		t.Errorf("RunEnd = %v", e)
	}
	r.atRest()
}

// §2.D link lost before the content was whole: there is nothing to go on with.
func TestBackgroundRunWithoutItsContent(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	r := newRig(t, &nodetest.Adapter{}, recorded(j))
	open := r.RunOpen("r1", 100)
	open.GetRun().Background = true
	r.OpenRun(open).Body([]byte("half")).Accepted()
	r.again()
	if e := r.RunEnd("r1"); e.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_LOST || r.adapter.Calls.Load() != 0 {
		t.Errorf("RunEnd = %v", e)
	}
	r.atRest()
}

// A cancel by id works over any connection, also one that was made later.
func TestCancelOfADetachedRun(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	adapter, called := startedRun()
	r := newRig(t, adapter, recorded(j))
	r.StartRun("r1", nodetest.Background)
	nodetest.Receive(t, "the adapter is called", called)
	r.again()
	if got := r.cancel("r1"); got != pb.CancelOutcome_CANCEL_OUTCOME_CANCELLING {
		t.Errorf("cancel = %v", got)
	}
	if e := r.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED || e.GetCode() != pb.FailureCode_FAILURE_CODE_CANCELLED || !e.GetBackground() {
		t.Errorf("RunEnd = %v", e)
	}
	r.atRest()
}

// §2.D EOF with the link alive is a cancel, of a background run too; but the stream of an edge that goes ends before
// its link does, and that is none.
func TestBackgroundRunWhoseStreamIsClosed(t *testing.T) {
	adapter, called := startedRun()
	r := newRig(t, adapter, timers(func(t *node.Timers) { t.Parting = soon }))
	run := r.StartRun("r1", nodetest.Background)
	nodetest.Receive(t, "the adapter is called", called)
	run.Close()
	if e := r.RunEnd("r1"); e.GetCode() != pb.FailureCode_FAILURE_CODE_CLIENT_GONE {
		t.Errorf("RunEnd = %v", e)
	}
	r.atRest()

	patience.Widen(t, 10*soon, func(parting time.Duration) (keptUp bool) {
		j, _ := openJournal(t, t.TempDir())
		adapter, called := startedRun()
		r := newRig(t, adapter, recorded(j), timers(func(t *node.Timers) { t.Parting = parting }))
		run := r.StartRun("r1", nodetest.Background)
		nodetest.Receive(t, "the adapter is called", called)
		closed := time.Now()
		run.Close()
		nodetest.Eventually(t, "the stream's end is on its way", func() bool { return r.Link.Status().OpenStreams == 0 })
		r.Start("behind").Collect()
		r.RunEnd("behind")
		r.Link.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_EDGE_DRAINING})
		r.Link.Close(transport.ReasonLost)
		<-r.mux.Down()
		if time.Since(closed) > parting/2 { // the node may have taken the close for the caller's
			return false
		}
		if ready := r.again(); len(ready.GetRunning()) != 1 || ready.GetRunning()[0].GetEnding() {
			t.Errorf("running = %v", ready.GetRunning())
		}
		lived := time.NewTimer(2 * parting)
		<-lived.C
		if n := len(r.Snapshot().Running); n != 1 {
			t.Error("the run ended with its stream")
		}
		r.cancel("r1")
		r.RunEnd("r1")
		r.atRest()
		return true
	})
}

// A run without a link is cancelled like any other: an adapter that looks at nothing else learns it from emit.
func TestCancelOfADetachedRunThatOnlyEmits(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		for {
			if err := emit(execution.Event{Kind: execution.EventDelta, Text: "x"}); err != nil {
				return execution.Completion{}, nil // and doesn't say so
			}
		}
	}}, recorded(j))
	r.StartRun("r1", nodetest.Background).Accepted()
	r.again()
	r.cancel("r1")
	if e := r.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED {
		t.Errorf("RunEnd = %v", e)
	}
	r.atRest()
}

// Node drain: background runs are cancelled with the rest, with or without a link.
func TestDrainCancelsBackgroundRuns(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	adapter, called := startedRun()
	r := newRig(t, adapter, recorded(j))
	r.StartRun("r1", nodetest.Background)
	nodetest.Receive(t, "the adapter is called", called)
	r.Link.Close(transport.ReasonLost)
	r.x.Drain()
	quiet := r.x.Quiet()
	select {
	case <-quiet:
		t.Fatal("quiet while a background run goes on")
	default:
	}
	r.x.CancelAll(execution.CauseNodeDraining)
	nodetest.Receive(t, "quiet", quiet)
	rows := j.Unreported("edge:1")
	if len(rows) != 1 || rows[0].Status != store.StatusCancelled || rows[0].Code != execution.CodeNodeDraining {
		t.Errorf("rows = %+v", rows)
	}
}

// A restart of the node: what ended without an acknowledgement is told by the next process, and so is what the first
// one's death interrupted. Faults row 42.
func TestUnreportedEndsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	j, closed := openJournal(t, dir)
	r := newRig(t, &nodetest.Adapter{}, recorded(j))
	r.StartRun("whole", nodetest.Background).Collect()
	r.RunEnd("whole")
	r.StartRun("foreground").Collect()
	r.RunEnd("foreground")
	j.Begin(store.Execution{Edge: "edge:1", RunID: "cut", Attempt: 2, Kind: execution.KindRun, Background: true}) // and then it died
	j.Begin(store.Execution{Edge: "other:1", RunID: "elsewhere", Kind: execution.KindRun, Background: true})
	r.Link.Close(transport.ReasonLost)
	closed()

	j, _ = openJournal(t, dir)
	r = newRig(t, &nodetest.Adapter{}, recorded(j))
	if e := r.RunEnd("whole"); e.GetStatus() != pb.RunStatus_RUN_STATUS_COMPLETE || !e.GetBackground() || e.GetCode() != 0 || e.GetBytesOut() != 2 {
		t.Errorf("RunEnd = %v", e)
	}
	if e := r.RunEnd("cut"); e.GetStatus() != pb.RunStatus_RUN_STATUS_ERROR || e.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_LOST || e.GetAttempt() != 2 || e.GetEndedMs() == 0 {
		t.Errorf("RunEnd = %v", e)
	}
	r.Link.SendRunEndedAck("whole", "cut")
	nodetest.Eventually(t, "the ends are acknowledged", func() bool { return len(j.Unreported("edge:1")) == 0 })
	r.again()
	if got := r.StartRun("more").Collect(); got.Complete == nil {
		t.Errorf("got %q", got.Kinds)
	}
	r.RunEnd("more")
	for _, id := range []string{"whole", "cut", "foreground", "elsewhere"} {
		if n := r.RunEnds(id); n != 0 {
			t.Errorf("%s was told %d more times", id, n)
		}
	}
	r.atRest()
}

// A run_id that comes again: the end of the earlier run isn't told any more, that of the later one is.
func TestEndsOfARunThatComesAgain(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	called := make(chan struct{}, 1)
	r := newRig(t, &nodetest.Adapter{OnExecute: func(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
		if req.Target == "hang" {
			called <- struct{}{}
			return nodetest.HangRun(ctx, req, emit)
		}
		return nodetest.Say(emit, "ok")
	}}, recorded(j))
	hang := func(q *pb.RunRequest) { q.Target = "hang" }
	r.StartRun("r1", nodetest.Background).Collect()
	r.RunEnd("r1")
	r.StartRun("r1", nodetest.Background, hang)
	nodetest.Receive(t, "the adapter is called", called)
	r.cancel("r1")
	if e := r.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED {
		t.Errorf("RunEnd = %v", e)
	}
	r.StartRun("r1", nodetest.Background, hang)
	nodetest.Receive(t, "the adapter is called", called)
	r.again()
	r.cancel("nobody")
	r.cancel("nobody") // everything before the second answer has arrived
	if n := r.RunEnds("r1"); n != 0 {
		t.Errorf("the earlier run's end was told %d times", n)
	}
	r.cancel("r1")
	if e := r.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED {
		t.Errorf("RunEnd = %v", e)
	}
	r.cancel("nobody")
	r.cancel("nobody")
	if n := r.RunEnds("r1"); n != 0 {
		t.Errorf("told %d more times", n)
	}
	r.atRest()
}

// Ends that meet a reconnect: each is told on the connection that stands in the end, exactly once.
func TestEndsRaceReconnects(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	release := make(chan chan struct{}, 1)
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, _ execution.Emit) (execution.Completion, error) {
		now := <-release
		release <- now
		<-now
		return execution.Completion{FinishReason: "stop"}, nil
	}}, recorded(j), capacity(100))
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		now := make(chan struct{})
		release <- now
		ids := make([]string, 5)
		for i := range ids {
			ids[i] = fmt.Sprintf("r%d-%d", round, i)
			r.StartRun(ids[i], nodetest.Background).Accepted()
		}
		var ends sync.WaitGroup
		ends.Go(func() { close(now) })
		r.again()
		ends.Wait()
		for _, id := range ids {
			r.RunEnd(id)
		}
		r.cancel("nobody")
		r.cancel("nobody") // everything before its answer has arrived
		for _, id := range ids {
			if n := r.RunEnds(id); n != 0 {
				t.Fatalf("round %d: %s was told %d more times on one connection", round, id, n)
			}
		}
		r.Link.SendRunEndedAck(ids...)
		nodetest.Eventually(t, "the ends are acknowledged", func() bool { return len(j.Unreported("edge:1")) == 0 })
		<-release
	}
	r.atRest()
}

// Without the feature nothing of background runs is said: their ends wait for an edge that knows them.
func TestEndsWaitForAnEdgeThatKnowsThem(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	j.Begin(store.Execution{Edge: "edge:1", RunID: "old", Kind: execution.KindRun, Background: true}).End(store.Outcome{Status: store.StatusComplete})
	r := newRig(t, &nodetest.Adapter{}, recorded(j), func(s *setup) { s.features = nil })
	r.StartRun("r1").Collect()
	r.RunEnd("r1")
	r.Link.SendRunEndedAck("old")
	r.cancel("nobody")
	if n := r.RunEnds("old"); n != 0 || len(j.Unreported("edge:1")) != 1 {
		t.Errorf("told %d times, %v", n, j.Unreported("edge:1"))
	}
	r.offers = node.Features()
	r.again()
	r.RunEnd("old")
	r.atRest()
}

// StorePolicy of the projection reaches the journal.
func TestStorePolicy(t *testing.T) {
	type policy struct {
		age  time.Duration
		rows int
	}
	told := make(chan policy, 10)
	r := newRig(t, &nodetest.Adapter{}, func(s *setup) { s.retain = func(age time.Duration, rows int) { told <- policy{age, rows} } })
	for _, c := range []struct {
		sent *pb.StorePolicy
		want policy
	}{
		{&pb.StorePolicy{MaxAgeMs: 5000, MaxRows: 10}, policy{5 * time.Second, 10}},
		{&pb.StorePolicy{MaxAgeMs: -1, MaxRows: 1 << 40}, policy{0, 1<<31 - 1}},
	} {
		r.session.Apply(context.Background(), &pb.NodeConfigPayload{Projection: 2, Store: c.sent})
		if got := nodetest.Receive(t, "the policy", told); got != c.want {
			t.Errorf("got %+v, want %+v", got, c.want)
		}
	}
}
