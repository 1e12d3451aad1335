package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// startedRun returns an adapter that says when it was called and then hangs until its cancel.
func startedRun() (*nodetest.Adapter, chan struct{}) {
	called := make(chan struct{}, 1000)
	return &nodetest.Adapter{OnExecute: func(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
		called <- struct{}{}
		return nodetest.HangRun(ctx, req, emit)
	}}, called
}

// §2.D CancelRequest while executing, for every cause: the terminal is cancelled{cause}.
func TestCancelRun(t *testing.T) {
	for cause := execution.CauseClientGone; cause <= execution.CauseCredentialRevoked; cause++ {
		adapter, called := startedRun()
		r := newRig(t, adapter, timers(func(t *node.Timers) { t.AdapterStop = 2 * nodetest.Limit })) // nothing waits for this
		run := r.StartRun("r1")
		nodetest.Receive(t, "the adapter is called", called)
		r.Link.SendCancel("r1", cause)
		if got := r.CancelResult("r1"); got.GetResult() != pb.CancelOutcome_CANCEL_OUTCOME_CANCELLING {
			t.Errorf("cancel result = %v", got)
		}
		if e := r.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED || e.GetCode() != pb.FailureCode(cause.Code()) {
			t.Errorf("%v: RunEnd = %v", cause, e)
		}
		if got := run.Collect(); got.Kinds != "ak" || got.Cancelled.GetCause() != pb.CancelCause(cause) {
			t.Errorf("%v: got %q %v %v", cause, got.Kinds, got.Cancelled, got.Err)
		}
		r.atRest()
	}
}

// §2.D, the other ways in which a run is cancelled, in the states in which they can happen.
func TestRunEndsEarly(t *testing.T) {
	t.Run("deadline", func(t *testing.T) {
		r := newRig(t, &nodetest.Adapter{OnExecute: nodetest.HangRun})
		got := r.StartRun("r1", func(q *pb.RunRequest) { q.DeadlineMs = 30 }).Collect()
		if e := r.RunEnd("r1"); got.Cancelled.GetCause() != pb.CancelCause_CANCEL_CAUSE_DEADLINE || e.GetCode() != pb.FailureCode_FAILURE_CODE_DEADLINE {
			t.Errorf("got %q %v, RunEnd %v", got.Kinds, got.Cancelled, e)
		}
		r.atRest()
	})
	t.Run("the stream is closed", func(t *testing.T) {
		adapter, called := startedRun()
		r := newRig(t, adapter)
		run := r.StartRun("r1")
		nodetest.Receive(t, "the adapter is called", called)
		run.Close()
		if e := r.RunEnd("r1"); e.GetCode() != pb.FailureCode_FAILURE_CODE_CLIENT_GONE {
			t.Errorf("RunEnd = %v", e)
		}
		r.atRest()
	})
	t.Run("cancelled while its content comes", func(t *testing.T) {
		r := newRig(t, &nodetest.Adapter{})
		run := r.OpenRun(r.RunOpen("r1", 100)).Body([]byte("half"))
		run.Accepted()
		r.Link.SendCancel("r1", execution.CauseAPI)
		got := run.Collect()
		if e := r.RunEnd("r1"); got.Kinds != "k" || e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED || r.adapter.Calls.Load() != 0 {
			t.Errorf("got %q, RunEnd %v", got.Kinds, e)
		}
		r.atRest()
	})
	t.Run("EOF before its content is whole", func(t *testing.T) {
		r := newRig(t, &nodetest.Adapter{})
		for i, change := range []func(*pb.RunRequest){func(*pb.RunRequest) {}, nodetest.Background} {
			id := fmt.Sprint("r", i)
			open := r.RunOpen(id, 100)
			change(open.GetRun())
			run := r.OpenRun(open).Body([]byte("half"))
			run.Accepted()
			run.Close()
			if e := r.RunEnd(id); e.GetCode() != pb.FailureCode_FAILURE_CODE_CLIENT_GONE || r.adapter.Calls.Load() != 0 {
				t.Errorf("RunEnd %v", e)
			}
		}
		r.atRest()
	})
	t.Run("an adapter that looks at nothing but emit", func(t *testing.T) {
		began := make(chan struct{}, 1)
		r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
			for i := 0; ; i++ {
				if err := emit(execution.Event{Kind: execution.EventDelta, Text: "x"}); err != nil {
					return execution.Completion{FinishReason: "stop"}, nil // and doesn't say so
				}
				if i == 0 {
					began <- struct{}{}
				}
			}
		}})
		run := r.StartRun("r1")
		nodetest.Receive(t, "an event", began)
		r.Link.SendCancel("r1", execution.CauseAPI)
		if e := r.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED {
			t.Errorf("RunEnd = %v", e)
		}
		if got := run.Collect(); got.Cancelled == nil {
			t.Errorf("got %v %v", got.Complete, got.Err)
		}
		r.atRest()
	})
	t.Run("an adapter that ignores its cancel", func(t *testing.T) {
		stop, called := make(chan struct{}), make(chan struct{}, 1)
		r := newRig(t, &nodetest.Adapter{OnExecute: func(context.Context, *execution.Request, execution.Emit) (execution.Completion, error) {
			called <- struct{}{}
			<-stop
			return execution.Completion{FinishReason: "stop"}, nil
		}}, capacity(1), timers(func(t *node.Timers) { t.AdapterStop = soon }))
		run := r.StartRun("r1")
		nodetest.Receive(t, "the adapter is called", called)
		r.Link.SendCancel("r1", execution.CauseAPI)
		if e := r.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_ABANDONED || !e.GetAbandoned() {
			t.Errorf("RunEnd = %v", e)
		}
		if got := run.Collect(); got.Kinds != "ak" {
			t.Errorf("got %q %v", got.Kinds, got.Err)
		}
		r.rejectsRun(r.StartRun("r2"), execution.CodeAdapterBusy)
		close(stop)
		r.Status("the place is back", func(s *pb.NodeStatus) bool { return s.GetAdapters()[0].GetCapacity() == 1 })
		r.atRest()
	})
}

// CA-05: open and cancel back to back, in whatever order they arrive: one end, and no provider call after it.
func TestCancelRacesTheOpenOfARun(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnExecute: nodetest.HangRun}, capacity(1))
	for i := range 300 {
		id := fmt.Sprint("r", i)
		var both sync.WaitGroup
		both.Go(func() { r.Link.SendCancel(id, execution.CauseAPI) })
		run := r.StartRun(id)
		both.Wait()
		got := run.Collect()
		switch {
		case got.Kinds == "r" && got.Rejected.GetFailure().GetCode() == pb.FailureCode_FAILURE_CODE_CANCELLED:
		case got.Kinds == "ak":
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

// ST-20, faults rows 25 and 26, CA-07: whatever an adapter emits, in whatever order, however it returns, and whoever
// cancels meanwhile: one terminal, nothing after it, the grammar is kept, and RunEnded says the same. A thousand orders.
func TestOneTerminalOfARunInAnyOrder(t *testing.T) {
	var script []int
	step := make(chan struct{}, 1) // reached the cancel's turn
	r := newRig(t, &nodetest.Adapter{OnExecute: func(ctx context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		return play(ctx, script, emit, step)
	}})
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		for range 10 { // rapid draws a hundred times
			round++
			script = rapid.SliceOfN(rapid.IntRange(0, stepCount-1), 0, 8).Draw(rt, "script")
			id := fmt.Sprint("r", round)
			run := r.StartRun(id)
			cancels := make(chan struct{})
			go func() { // ends with the round
				defer close(cancels)
				if hasCancel(script) {
					<-step
					r.Link.SendCancel(id, execution.CauseAPI)
				}
			}()
			got := run.Collect()
			e := r.RunEnd(id)
			select {
			case step <- struct{}{}: // an order that ended before its cancel's turn
			default:
			}
			<-cancels
			select {
			case <-step:
			default:
			}
			checkEnd(rt, script, got, e)
			if n := r.RunEnds(id); n != 0 {
				rt.Fatalf("script %v: %d more RunEnds", script, n)
			}
		}
	})
	r.atRest()
}

// The steps of a script, beside the kinds of events.
const (
	stepFail   = 6
	stepPanic  = 7
	stepCancel = 8
	stepReturn = 9
	stepCount  = 10
)

func hasCancel(script []int) bool {
	for _, s := range script {
		if s == stepCancel {
			return true
		}
	}
	return false
}

// play emits what a script says.
func play(ctx context.Context, script []int, emit execution.Emit, turn chan<- struct{}) (execution.Completion, error) {
	for _, s := range script {
		switch s {
		case stepFail:
			return execution.Completion{}, execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "cut")
		case stepPanic:
			panic("step")
		case stepReturn:
			return execution.Completion{FinishReason: "stop"}, nil
		case stepCancel:
			select {
			case turn <- struct{}{}:
			default:
			}
			if len(script)%2 == 0 { // half of them wait for it, the others race it
				<-ctx.Done()
			}
		default:
			_ = emit(execution.Event{Kind: execution.EventKind(s), Text: "x", Usage: counts(1, 2), ToolCall: execution.ToolCallDelta{ID: "c", Name: "f"}})
		}
	}
	return execution.Completion{FinishReason: "stop"}, ctx.Err()
}

// checkEnd compares a run's events with its end.
func checkEnd(t *rapid.T, script []int, got *nodetest.RunResult, e *pb.RunEnd) {
	t.Helper()
	// A cancel that comes after the end closes the lingering stream: then its reader was cut, not answered.
	if got.Err != nil && hasCancel(script) && e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED {
		return
	}
	if got.Err != nil || got.Terminals() != 1 {
		t.Fatalf("script %v: %q %v", script, got.Kinds, got.Err)
	}
	seq := execution.NewSequence(execution.KindRun)
	steps := map[rune]execution.Step{'a': execution.StepAccepted, 's': execution.StepStart, 'd': execution.StepDelta, 't': execution.StepDelta,
		'f': execution.StepDelta, 'u': execution.StepUsage, 'c': execution.StepComplete, 'x': execution.StepError, 'k': execution.StepCancelled}
	for _, k := range got.Kinds {
		if err := seq.Accept(steps[k], seq.Next()); err != nil {
			t.Fatalf("script %v: %q: %v", script, got.Kinds, err)
		}
	}
	want := map[bool]pb.RunStatus{got.Complete != nil: pb.RunStatus_RUN_STATUS_COMPLETE}[true]
	switch {
	case got.Error != nil:
		want = pb.RunStatus_RUN_STATUS_ERROR
	case got.Cancelled != nil:
		want = pb.RunStatus_RUN_STATUS_CANCELLED
	}
	if e.GetStatus() != want || (e.GetCode() == 0) != (got.Complete != nil) {
		t.Fatalf("script %v: %q, RunEnd %v", script, got.Kinds, e)
	}
}

// CA-07: ten runs in parallel, the cancel of one meets its last token: it has one terminal, the others are whole. The
// session_id that they share is no state.
func TestCancelOfARunRacesCompletion(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 5
	}
	gate := make(chan chan struct{}, 1)
	r := newRig(t, &nodetest.Adapter{OnExecute: func(ctx context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		now := <-gate
		gate <- now
		select {
		case <-now:
			return nodetest.Say(emit, "a", "b", "last")
		case <-ctx.Done():
			return execution.Completion{}, context.Cause(ctx)
		}
	}}, capacity(10))
	for round := range rounds {
		now := make(chan struct{})
		gate <- now
		ids, runs := make([]string, 10), make([]*nodetest.Run, 10)
		for i := range ids {
			ids[i] = fmt.Sprintf("r%d-%d", round, i)
			runs[i] = r.StartRun(ids[i], func(q *pb.RunRequest) { q.SessionId = "same" })
			runs[i].Accepted()
		}
		var both sync.WaitGroup
		both.Go(func() { close(now) })
		both.Go(func() { r.Link.SendCancel(ids[3], execution.CauseAPI) })
		both.Wait()
		for i, run := range runs {
			got, e := run.Collect(), r.RunEnd(ids[i])
			whole := got.Text.String() == "ablast" && got.Complete != nil && e.GetStatus() == pb.RunStatus_RUN_STATUS_COMPLETE
			if !whole && (i != 3 || got.Err == nil && (got.Cancelled == nil || e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED)) {
				t.Fatalf("round %d run %d: %q %q %v, RunEnd %v", round, i, got.Kinds, got.Text.String(), got.Err, e)
			}
		}
		<-gate
	}
	r.atRest()
}

// The log line of a run says what kind it is, and nothing of its content.
func TestRunLogLine(t *testing.T) {
	log := new(logged)
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		_, err := nodetest.Say(emit, "S3CR3T-ANSWER")
		return execution.Completion{FinishReason: "stop", Usage: counts(3, 4)}, errors.Join(err)
	}}, func(s *setup) { s.log = zerolog.New(log) })
	r.StartRun("r1").Collect()
	r.RunEnd("r1")
	r.atRest()
	for _, want := range []string{`"run_id":"r1"`, `"kind":"run"`, `"outcome":"complete"`, `"input_tokens":3`, `"output_tokens":4`, `"first_byte_ms":`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "S3CR3T") || strings.Contains(log.String(), `"status"`) {
		t.Errorf("the log says too much:\n%s", log.String())
	}
}

// logged is a log that may be read while it is written.
type logged struct {
	mu  sync.Mutex
	out strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}
