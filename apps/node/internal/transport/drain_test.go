package transport

import (
	"context"
	"fmt"
	"testing"
	"time"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// §2.B SIGTERM in each state in which nothing runs: Run returns at once; a connection hears why.
func TestDrainWithoutWork(t *testing.T) {
	t.Run("backoff", func(t *testing.T) {
		r := newRig(t, &nodetest.Adapter{}, func(c *Config) { c.Timers.BackoffStart = time.Hour; c.Timers.BackoffMax = time.Hour })
		conn, _ := r.hello()
		conn.Close()
		r.state(StateBackoff)
		r.link.Drain()
		r.exits()
	})
	t.Run("handshake", func(t *testing.T) {
		r := newRig(t, &nodetest.Adapter{})
		conn, _ := r.hello()
		defer conn.Close()
		r.state(StateHandshake)
		r.link.Drain()
		r.exits()
	})
	t.Run("building", func(t *testing.T) {
		answer := make(chan struct{})
		defer close(answer)
		r := newRig(t, &nodetest.Adapter{OnProbe: func(ctx context.Context) execution.Capabilities {
			select {
			case <-answer:
			case <-ctx.Done():
			}
			return nodetest.Up()
		}})
		edge, _ := r.accept(7)
		r.state(StateBuilding)
		r.link.Drain()
		if g := edge.Goodbye(); g.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_NODE_DRAINING {
			t.Errorf("goodbye = %v", g)
		}
		r.exits()
	})
	t.Run("serving", func(t *testing.T) {
		r := newRig(t, &nodetest.Adapter{})
		edge := r.serve(7)
		r.link.Drain()
		edge.Status("draining", func(s *pb.NodeStatus) bool { return s.GetDraining() })
		if g := edge.Goodbye(); g.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_NODE_DRAINING {
			t.Errorf("goodbye = %v", g)
		}
		if e := edge.Ended(); e.Reason != transport.ReasonLeft {
			t.Errorf("link ended with %v", e)
		}
		r.exits()
	})
}

// TU-30, faults row 4: what runs finishes, new work is refused, every answer is whole, then the node leaves.
func TestDrainLetsWorkFinish(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(ctx context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		if err := sink.Head(200, nil); err != nil {
			return err
		}
		<-release
		return sink.Body(make([]byte, 300<<10)) // TU-13: shutdown right after the end
	}})
	edge := r.serve(7)
	var tunnels []*nodetest.Tunnel
	for i := range 3 {
		tn := edge.Start(fmt.Sprint("r", i))
		tn.Accepted()
		tunnels = append(tunnels, tn)
	}
	r.link.Drain()
	edge.Status("draining", func(s *pb.NodeStatus) bool { return s.GetDraining() })
	r.state(StateDraining)
	got := edge.Start("late").Collect()
	if f := got.Rejected.GetFailure(); f.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_DRAINING || !got.Rejected.GetNeverStarted() {
		t.Errorf("new work: %q %v", got.Kinds, got.Rejected)
	}
	edge.Link.SendReadyAck(1, true) // ignored while draining
	close(release)
	for i, tn := range tunnels {
		edge.RunEnd(fmt.Sprint("r", i)) // before the answer was read
		if got := tn.Collect(); len(got.Body) != 300<<10 || got.End == nil {
			t.Errorf("run %d: %d bytes, %v %v", i, len(got.Body), got.Error, got.Err)
		}
	}
	if g := edge.Goodbye(); g.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_NODE_DRAINING {
		t.Errorf("goodbye = %v", g)
	}
	r.exits()
}

// TU-30: a run that is longer than the drain limit is cancelled and has one terminal that says so; cancels work
// meanwhile.
func TestDrainLimit(t *testing.T) {
	patience.Widen(t, 100*time.Millisecond, func(limit time.Duration) (keptUp bool) {
		r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang}, func(c *Config) { c.Timers.Drain = limit })
		edge := r.serve(7)
		long, cancelled := edge.Start("long"), edge.Start("cancelled")
		long.Accepted()
		cancelled.Accepted()
		began := time.Now()
		r.link.Drain()
		edge.Link.SendCancel("cancelled", execution.CauseAPI)
		e := edge.RunEnd("cancelled")
		if keptUp = time.Since(began) < limit; keptUp && e.GetCode() != pb.FailureCode_FAILURE_CODE_CANCELLED {
			t.Errorf("RunEnd = %v", e)
		}
		cancelled.Collect()
		got := long.Collect()
		if got.Kinds != "x" || got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_DRAINING {
			t.Errorf("got %q %v %v", got.Kinds, got.Error, got.Err)
		}
		if e := edge.RunEnd("long"); e.GetStatus() != pb.RunStatus_RUN_STATUS_CANCELLED || e.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_DRAINING {
			t.Errorf("RunEnd = %v", e)
		}
		edge.Goodbye()
		r.exits()
		return keptUp
	})
}

// §2.B draining: the link is lost → exit, since nothing can be running any more.
func TestDrainEndsWithTheLink(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang})
	edge := r.serve(7)
	edge.Start("r1").Accepted()
	r.link.Drain()
	edge.Status("draining", func(s *pb.NodeStatus) bool { return s.GetDraining() })
	edge.Link.Close(transport.ReasonLost)
	r.exits()
}

// TU-30: a second signal ends at once, whatever runs; the edge hears Goodbye(killed).
func TestKill(t *testing.T) {
	for _, draining := range []bool{true, false} {
		stop := make(chan struct{})
		r := newRig(t, &nodetest.Adapter{OnTunnel: func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error {
			<-stop // ignores its context
			return nil
		}})
		edge := r.serve(7)
		edge.Start("r1").Accepted()
		if draining {
			r.link.Drain()
			edge.Status("draining", func(s *pb.NodeStatus) bool { return s.GetDraining() })
		}
		began := time.Now()
		r.kill()
		if g := edge.Goodbye(); g.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_KILLED {
			t.Errorf("goodbye = %v", g)
		}
		r.exits()
		if took := time.Since(began); took > nodetest.Limit/2 { // it is to wait for nothing that has a limit
			t.Errorf("it took %v", took)
		}
		close(stop)
	}
}
