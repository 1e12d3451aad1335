package service_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// whole is the service over the real registry and the real listener of nodes, put together as the program does it.
type whole struct {
	*edgetest.Edge
	*service.Service

	mu    sync.Mutex
	ended []service.Outcome
}

// late lets the listener be built before the service that it tells.
type late struct{ w *whole }

func (l *late) RunEnded(nodeID string, generation uint64, e *pb.RunEnd, held bool) {
	l.w.Service.RunEnded(nodeID, generation, e, held)
}

func (l *late) Adopted(nodeID string, generation uint64, running []*pb.RunningExecution) {
	l.w.Service.Adopted(nodeID, generation, running)
}

// Lookup implements service.Nodes.
func (w *whole) Lookup(id string, generation uint64) service.Node {
	if c := w.Registry.Lookup(id, generation); c != nil {
		return c
	}
	return nil
}

// Connected implements service.Nodes.
func (w *whole) Connected() []string {
	var ids []string
	for _, c := range w.Registry.Connections() {
		ids = append(ids, c.NodeID)
	}
	return ids
}

// Ended implements service.Observer.
func (w *whole) Ended(o *service.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = append(w.ended, *o)
}

func (w *whole) outcomes(id string) (all []service.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.ended {
		if o.RunID == id {
			all = append(all, o)
		}
	}
	return all
}

func start(t *testing.T) *whole {
	w := &whole{}
	w.Edge = edgetest.Start(t, edgetest.Options{Nodes: []config.NodeRecord{edgetest.Record("a", 4)}, Runs: &late{w}})
	w.Service = service.New(service.Config{State: w.State, Scheduler: w.Scheduler, Nodes: w,
		Observers: []service.Observer{w}, Log: zerolog.Nop()})
	t.Cleanup(func() {
		w.Service.Drain()
		w.Service.Depart()
	})
	return w
}

// connect registers the node; it accepts every run and says one word.
func (w *whole) connect(t *testing.T, running ...*pb.RunningExecution) *edgetest.Node {
	t.Helper()
	hello := edgetest.Hello("a")
	hello.Features = []pb.Feature{pb.Feature_FEATURE_BACKGROUND}
	if c := w.Registry.Current("a"); c != nil {
		hello.LastGeneration = c.Generation // the same process comes back, and knows that its old connection is over
	}
	n := edgetest.Dial(t, w.Edge, "a", edgetest.NodeOptions{Hello: hello, Work: func(_ *edgetest.Node, s *transport.Stream) {
		defer s.Close()
		if open, err := s.ReadOpen(time.Minute); err != nil || open.GetRun() == nil {
			return
		}
		_ = s.Write(&pb.RunEvent{Seq: 1, Event: &pb.RunEvent_Accepted{Accepted: &pb.Accepted{}}})
		_ = s.Write(&pb.RunEvent{Seq: 2, Event: &pb.RunEvent_Delta{Delta: "one"}})
		for {
			if _, err := s.ReadInput(); err != nil {
				return
			}
		}
	}})
	n.AwaitReady(t, running...)
	return n
}

func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	patience.Until(t, what, check)
}

// submit starts a run and returns when the node has said its word.
func (w *whole) submit(t *testing.T, id string, background bool) <-chan *service.Outcome {
	t.Helper()
	done, heard := make(chan *service.Outcome, 1), make(chan struct{}, 1)
	go func() {
		done <- w.SubmitRun(context.Background(), &service.RunSpec{RunID: id, Principal: "p", Adapter: "loopback", Target: "m",
			Background: background, Input: &execution.Request{Messages: []execution.Message{{Role: execution.RoleUser,
				Parts: []execution.Part{{Text: "hello"}}}}}}, words(heard))
	}()
	select {
	case <-heard:
	case o := <-done:
		t.Fatalf("%s ended: %+v", id, o.Failure)
	case <-time.After(patience.Limit):
		t.Fatalf("%s: nothing was heard", id)
	}
	return done
}

// words tells of each event.
type words chan struct{}

func (words) Placed(service.Placement) {}

func (w words) Event(uint64, execution.Event) error {
	w <- struct{}{}
	return nil
}

func (w *whole) held() (held, adopted int) {
	for _, p := range w.Scheduler.Snapshot().Places {
		held, adopted = held+p.InFlight, adopted+p.Adopted
	}
	return held, adopted
}

func executing(id string) *pb.RunningExecution {
	return &pb.RunningExecution{RunId: id, Attempt: 1, Adapter: "loopback", Background: true}
}

func ended(id string) *pb.RunEnd {
	return &pb.RunEnd{RunId: id, Attempt: 1, Status: pb.RunStatus_RUN_STATUS_COMPLETE, Background: true}
}

// protocol.md 8 "background runs and reconnect", through the real registry: a link with a background and a foreground
// run on it is replaced by a new connection of the same process. After it the holder set is {background}, and its end
// arrives exactly once.
func TestReconnectThroughTheRegistry(t *testing.T) {
	for _, how := range []string{"cut", "superseded"} {
		t.Run(how, func(t *testing.T) {
			w := start(t)
			first := w.connect(t)
			back, fore := w.submit(t, "back", true), w.submit(t, "fore", false)
			if held, _ := w.held(); held != 2 {
				t.Fatalf("%d places are held", held)
			}
			if how == "cut" {
				first.Close()
				eventually(t, "detached", func() bool { v, _ := w.Service.Run("back"); return v.State == service.StateDetached })
				eventually(t, "no place is held", func() bool { held, _ := w.held(); return held == 0 })
			}
			second := w.connect(t, executing("back"))
			if o := <-fore; o.Code() != execution.CodeNodeLost {
				t.Errorf("foreground: %+v", o.Failure)
			}
			eventually(t, "adopted", func() bool {
				v, _ := w.Service.Run("back")
				return v.State == service.StateRunning && v.Generation == second.Generation()
			})
			if held, adopted := w.held(); held != 1 || adopted != 1 {
				t.Errorf("%d places are held, %d adopted", held, adopted)
			}
			for range 2 {
				second.Link.SendRunEnded(ended("back"))
				ack := edgetest.Await(t, second, patience.Limit, (*pb.EdgeControl).GetRunEndedAck)
				if len(ack.GetRunIds()) != 1 || ack.GetRunIds()[0] != "back" {
					t.Errorf("confirmed %v", ack.GetRunIds())
				}
			}
			if o := <-back; o == nil || !o.OK() {
				t.Errorf("background: %+v", o)
			}
			if all := w.outcomes("back"); len(all) != 1 {
				t.Errorf("%d outcomes", len(all))
			}
			if held, _ := w.held(); held != 0 {
				t.Errorf("%d places are held at the end", held)
			}
		})
	}
}

// After a restart of the edge a node says what it still runs and what has ended: both are known, confirmed, and
// cancelled on request. The node's leaving ends the adopted place.
func TestRestartThroughTheRegistry(t *testing.T) {
	w := start(t)
	n := w.connect(t, executing("runs"))
	n.Link.SendRunEnded(ended("ended"))
	edgetest.Await(t, n, patience.Limit, (*pb.EdgeControl).GetRunEndedAck)
	for id, live := range map[string]bool{"runs": true, "ended": false} {
		if v, ok := w.Service.Run(id); !ok || v.State != service.StateRecovered || v.Live != live {
			t.Errorf("%s: %+v", id, v)
		}
	}
	if held, adopted := w.held(); held != 1 || adopted != 1 {
		t.Errorf("%d places are held, %d adopted", held, adopted)
	}
	if got := w.Cancel("runs", execution.CauseAPI); got != service.Cancelling {
		t.Errorf("cancel: %v", got)
	}
	c := edgetest.Await(t, n, patience.Limit, (*pb.EdgeControl).GetCancel)
	if c.GetRunId() != "runs" || c.GetCause() != pb.CancelCause_CANCEL_CAUSE_API {
		t.Errorf("the node was told %v", c)
	}
	n.Link.SendRunEnded(&pb.RunEnd{RunId: "runs", Attempt: 1, Status: pb.RunStatus_RUN_STATUS_CANCELLED, Background: true})
	eventually(t, "no place is held", func() bool { held, _ := w.held(); return held == 0 })
	eventually(t, "nothing is live", func() bool { return w.Live() == 0 })
}
