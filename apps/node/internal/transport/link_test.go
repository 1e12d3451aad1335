package transport

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// §2.B, the way up: dialing → handshake → building → serving.
func TestLinkComesUp(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	edge, req := r.accept(7)
	if req.GetToken() != "token-1" || req.GetProtocolMin() != 1 || req.GetProtocolMax() != 1 || len(req.GetInstanceId()) != 16 ||
		req.GetSoftwareVersion() != "9.9" || req.GetLastGeneration() != 0 || req.GetHandover() || req.GetOsArch() == "" || !slices.Equal(req.GetFeatures(), []pb.Feature{pb.Feature_FEATURE_BACKGROUND, pb.Feature_FEATURE_OLLAMA_COMMAND, pb.Feature_FEATURE_TRACE}) {
		t.Errorf("registration = %v", req)
	}
	ready := edge.Ready()
	if ready.GetProjection() != 1 || len(ready.GetAdapters()) != 1 || !ready.GetAdapters()[0].GetAvailable() || ready.GetAdapters()[0].GetCapacity() != 4 || len(ready.GetRunning()) != 0 {
		t.Errorf("ready = %v", ready)
	}
	r.state(StateServing)
	select {
	case <-r.ready:
		t.Error("OnReady before the edge confirmed")
	default:
	}
	edge.Link.SendReadyAck(1, false) // e.g. a draining edge
	edge.Link.SendReadyAck(1, true)
	if got := nodetest.Receive(t, "OnReady", r.ready); got != "edge:1" {
		t.Errorf("OnReady(%q)", got)
	}
	if got := edge.Start("r1").Collect(); got.Kinds != "ahbe" {
		t.Errorf("got %q %v", got.Kinds, got.Err)
	}
	edge.RunEnd("r1")
	nodetest.Eventually(t, "the projection is noted", func() bool { return r.link.Status().Projection == 1 })
	s := r.link.Status()
	if s.Generation != 7 || s.NodeID != "gpu-1" || s.EdgeID != "edge" || s.Projection != 1 || s.Dials != 1 || s.Registrations != 1 || s.Mux.BytesIn == 0 {
		t.Errorf("status = %+v", s)
	}
}

// §8 "ReadyAck races the first work": the node serves from the moment that it said Ready, in whatever order the edge's
// first work and its ReadyAck arrive.
func TestReadyAckRacesTheFirstWork(t *testing.T) {
	for _, ackFirst := range []bool{true, false} {
		r := newRig(t, &nodetest.Adapter{})
		edge, _ := r.accept(7)
		edge.Ready()
		if ackFirst {
			edge.Link.SendReadyAck(1, true)
		}
		tn := edge.Start("r1")
		if !ackFirst {
			if got := tn.Collect(); got.Kinds != "ahbe" { // served before any ReadyAck
				t.Errorf("before the ack: %q %v", got.Kinds, got.Err)
			}
			edge.Link.SendReadyAck(1, true)
			tn = edge.Start("r2")
		}
		if got := tn.Collect(); got.Kinds != "ahbe" {
			t.Errorf("ackFirst %v: %q %v", ackFirst, got.Kinds, got.Err)
		}
		nodetest.Receive(t, "OnReady", r.ready)
		r.stop()
	}
}

// §2.B building: work or a ReadyAck before Ready is a breach of the protocol; a cancel has nothing to find; a drain
// notice is noted.
func TestBuilding(t *testing.T) {
	for _, c := range []struct {
		name string
		send func(*nodetest.EdgeSide)
		kill bool
	}{
		{"work", func(e *nodetest.EdgeSide) { e.Breach(e.TunnelOpen("r1")) }, true},
		{"ReadyAck", func(e *nodetest.EdgeSide) { e.Link.SendReadyAck(1, true) }, true},
		{"CancelRequest", func(e *nodetest.EdgeSide) { e.Link.SendCancel("r1", execution.CauseAPI) }, false},
		{"DrainNotice", func(e *nodetest.EdgeSide) { e.Link.SendDrainNotice(&pb.DrainNotice{GraceMs: 1}) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := make(chan struct{})
			r := newRig(t, &nodetest.Adapter{OnProbe: func(context.Context) execution.Capabilities { // hangs, whatever it is told
				<-answer
				return nodetest.Up()
			}})
			edge, _ := r.accept(7)
			r.state(StateBuilding)
			// A hanging probe doesn't hold up control.
			probe, cancel := context.WithTimeout(context.Background(), nodetest.Limit)
			defer cancel()
			if err := edge.Link.Probe(probe); err != nil {
				t.Fatal(err)
			}
			c.send(edge)
			if c.kill {
				if g := edge.Goodbye(); g.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_PROTOCOL {
					t.Errorf("goodbye = %v", g)
				}
				edge.Ended()
				close(answer)
				r.serve(8) // and the next connection is fine
				return
			}
			r.heard(edge)
			close(answer)
			edge.Ready()
			if c.name == "CancelRequest" {
				nodetest.Eventually(t, "the early cancel is counted, with what heard sent", func() bool { return r.late.of("control") == 2 })
			}
			if got := edge.Start("r1").Collect(); got.Kinds != "ahbe" {
				t.Errorf("got %q %v", got.Kinds, got.Err)
			}
			edge.RunEnd("r1")
		})
	}
}

// §2.B ConfigRefresh: while building only the newest projection gets a Ready; while serving each one does; an older
// one is ignored and counted; one that makes no sense is refused and the old one stays.
func TestConfigRefresh(t *testing.T) {
	answer := make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnProbe: func(context.Context) execution.Capabilities {
		<-answer
		return nodetest.Up()
	}})
	edge, _ := r.accept(7)
	r.state(StateBuilding)
	for n := uint64(2); n <= 4; n++ {
		edge.Link.SendRefresh(projection(n))
		r.heard(edge) // each goes out by itself
	}
	answer <- struct{}{} // to the probe of projection 1
	nodetest.Eventually(t, "the newest one is being built", func() bool { return r.adapter.Probes.Load() == 2 })
	if n := edge.Seen(func(m *pb.NodeControl) bool { return m.GetReady() != nil }); n != 0 {
		t.Error("Ready for a projection that was overtaken")
	}
	close(answer)
	if got := edge.Ready(); got.GetProjection() != 4 {
		t.Errorf("first Ready is for %d, want the newest", got.GetProjection())
	}
	edge.Link.SendRefresh(projection(5))
	if got := edge.Ready(); got.GetProjection() != 5 {
		t.Errorf("ready = %v", got)
	}
	counted := r.late.of("control")
	edge.Link.SendRefresh(projection(3))
	nodetest.Eventually(t, "the older one is counted", func() bool { return r.late.of("control") == counted+1 })
	bad := projection(6)
	bad.Adapters[0].Name = ""
	edge.Link.SendRefresh(bad)
	if got := edge.Ready(); got.GetProjection() != 5 || got.GetRefusedProjection() != 6 || got.GetRefuseText() == "" {
		t.Errorf("ready = %v", got)
	}
	if n := edge.Seen(func(m *pb.NodeControl) bool { return m.GetReady() != nil }); n != 0 {
		t.Errorf("%d more Readys", n)
	}
	if got := edge.Start("r1").Collect(); got.Kinds != "ahbe" {
		t.Errorf("got %q %v", got.Kinds, got.Err)
	}
	edge.RunEnd("r1")
}

// §2.B serving: the link is lost (EOF, reset, the edge's Goodbye); executions are cancelled, and the node comes back
// by itself, naming the generation that it had. OL-09, OL-10, faults rows 1 and 8.
func TestLinkLostAndBack(t *testing.T) {
	called, ended := make(chan struct{}, 100), make(chan error, 100)
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(ctx context.Context, _ *execution.TunnelRequest, _ execution.TunnelSink) error {
		called <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return context.Cause(ctx)
	}})
	for generation := uint64(1); generation <= 20; generation++ {
		edge, req := r.accept(generation)
		if req.GetLastGeneration() != generation-1 || generation > 1 && len(req.GetLastEdgeInstance()) != 1 {
			t.Fatalf("registration %d = %v", generation, req)
		}
		if ready := edge.Ready(); len(ready.GetRunning()) != 0 {
			t.Errorf("running = %v", ready.GetRunning())
		}
		edge.Link.SendReadyAck(1, true)
		nodetest.Receive(t, "OnReady", r.ready)
		edge.Start("r1").Accepted()
		nodetest.Receive(t, "the provider is called", called) // which may be after the answer has begun
		switch generation % 3 {
		case 0:
			edge.Link.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_EDGE_DRAINING, RetryAfterMs: 1})
		default:
			edge.Link.Close(transport.ReasonLost)
		}
		if err := nodetest.Receive(t, "the provider is cancelled", ended); !errors.Is(err, execution.CauseLinkLost) && !errors.Is(err, execution.CauseClientGone) {
			t.Errorf("cancelled with %v", err)
		}
	}
	if s := r.link.Status(); s.LastError == "" && s.State == StateBackoff {
		t.Errorf("status = %+v", s)
	}
}

// TU-01 at the node: an edge that falls silent without a FIN is given up at the dead limit, and dialed again. The limits
// are the ones that the edge named.
func TestSilentEdge(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang})
	resp := acceptance(7, projection(1))
	resp.Limits = &pb.Limits{HeartbeatMs: 50, DeadMs: 150}
	began := time.Now()
	conn, _ := r.answer(resp)
	go func() { _, _ = io.Copy(io.Discard, conn) }() // takes everything, says nothing
	next := nodetest.Receive(t, "the node dials again", r.dials)
	defer next.Close()
	if took := time.Since(began); took < 150*time.Millisecond {
		t.Errorf("given up after %v, want 150ms", took)
	}
	conn.Close()
}

// Faults row 49 and the fault bins of the control stream: what breaks the framing ends the link, what is unknown or
// wasn't negotiated is ignored and counted.
func TestControlFaults(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	conn, _ := r.answer(acceptance(7, projection(1)))
	raw := nodetest.NewRawEdge(t, conn)
	raw.AwaitReady(t) // before it has opened the control stream, the node hears nothing there
	for _, m := range []*pb.EdgeControl{
		{Message: &pb.EdgeControl_RunEndedAck{RunEndedAck: &pb.RunEndedAck{RunIds: []string{"r"}}}},
		{Message: &pb.EdgeControl_CredentialRevoked{CredentialRevoked: &pb.CredentialRevoked{Slot: "s"}}},
		{Message: &pb.EdgeControl_RecipientChallenge{RecipientChallenge: &pb.RecipientChallenge{Enc: []byte("x")}}},
	} {
		if err := raw.Send(nodetest.ControlStream, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := raw.SendBytes(nodetest.ControlStream, 4, []byte{0xFA, 0x07, 0x01, 0x00}); err != nil { // a oneof case of a newer edge
		t.Fatal(err)
	}
	nodetest.Eventually(t, "three are counted", func() bool { return r.late.of("control") == 3 })
	if err := raw.SendBytes(nodetest.ControlStream, 0xFFFFFFFF, nil); err != nil {
		t.Fatal(err)
	}
	nodetest.Receive(t, "the link's end", raw.Ended)
	r.serve(8)
}

// FEATURE_BACKGROUND is used where both sides offer it: such a run goes on over the next connection, and its end is
// acknowledged there. §8 "background runs and reconnect".
func TestBackgroundIsNegotiated(t *testing.T) {
	next := make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		<-next
		return nodetest.Say(emit, "ok")
	}})
	serve := func(generation uint64) (*nodetest.EdgeSide, *pb.Ready) {
		resp := acceptance(generation, projection(1))
		resp.Features = []pb.Feature{pb.Feature_FEATURE_BACKGROUND, pb.Feature_FEATURE_TRACE}
		conn, _ := r.answer(resp)
		edge := nodetest.NewEdgeSide(t, conn, generation, transport.Config{})
		ready := edge.Ready()
		edge.Link.SendReadyAck(1, true)
		return edge, ready
	}
	edge, _ := serve(7)
	edge.StartRun("r1", nodetest.Background).Accepted()
	edge.Link.Close(transport.ReasonLost)
	edge, ready := serve(8)
	if got := ready.GetRunning(); len(got) != 1 || !got[0].GetBackground() {
		t.Errorf("running = %v", got)
	}
	close(next)
	if e := edge.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_COMPLETE || !e.GetBackground() {
		t.Errorf("RunEnd = %v", e)
	}
	edge.Link.SendRunEndedAck("r1")
	edge.Link.SendCancel("nobody", execution.CauseAPI)
	edge.CancelResult("nobody") // the acknowledgement may come behind it, so:
	edge.Link.SendCancel("nobody", execution.CauseAPI)
	edge.CancelResult("nobody")
	if n := r.late.of("control"); n != 0 {
		t.Errorf("%d control messages without business", n)
	}
}

// Every message of the control stream is handled or ignored on purpose: a new case of the oneof without a decision
// fails here.
func TestEveryControlMessageIsDecided(t *testing.T) {
	handled := map[string]bool{"cancel": true, "ready_ack": true, "config_refresh": true, "drain_notice": true, "goodbye": true,
		"heartbeat": false, "run_ended_ack": false, "credential_revoked": false, "recipient_challenge": false}
	r := newRig(t, &nodetest.Adapter{})
	edge := r.serve(7)
	r.link.mu.Lock()
	mux := r.link.mux
	r.link.mu.Unlock()
	c := &connection{link: r.link, mux: mux, session: r.x.NewSession(mux, 7), acked: make(chan struct{}), offered: make(chan struct{}, 1)}
	c.serving.Store(true)
	fields := (&pb.EdgeControl{}).ProtoReflect().Descriptor().Oneofs().ByName("message").Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		want, known := handled[string(f.Name())]
		m := &pb.EdgeControl{}
		m.ProtoReflect().Set(f, m.ProtoReflect().NewField(f))
		if refresh := m.GetConfigRefresh(); refresh != nil {
			refresh.Config = projection(1)
		}
		if got := c.handle(m); got != want || !known {
			t.Errorf("%s: handled %v, want %v (decided: %v)", f.Name(), got, want, known)
		}
	}
	if err := edge.Link.Err(); err != nil {
		t.Error(err)
	}
}

// §2.B wake from sleep: in backoff the node dials at once; a connection that is up is closed and dialed at once.
func TestWakeFromSleep(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang}, func(c *Config) {
		c.Timers.BackoffStart, c.Timers.BackoffMax = time.Hour, time.Hour
		c.Random = func() float64 { return 0.9 }
	})
	r.down.Store(false)
	edge := r.serve(7)
	edge.Start("r1").Accepted()
	r.slept.Add(int64(4 * time.Second)) // too short to be a sleep
	nodetest.Eventually(t, "some ticks", func() bool { return r.link.Status().State == StateServing })
	r.slept.Add(int64(6 * time.Second))
	edge.Ended()
	second, req := r.accept(8) // with an hour of backoff
	if req.GetLastGeneration() != 7 {
		t.Errorf("registration = %v", req)
	}
	second.Ready()
	r.down.Store(true)
	second.Link.Close(transport.ReasonLost)
	r.state(StateBackoff)
	if next := time.Until(r.link.Status().NextDial); next < 30*time.Minute {
		t.Errorf("next dial in %v", next)
	}
	r.down.Store(false)
	r.slept.Add(int64(6 * time.Second))
	third, _ := r.accept(9)
	third.Ready()
}

// A sleep while the adapters are being built closes the connection, too.
func TestWakeWhileBuilding(t *testing.T) {
	answer := make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnProbe: func(context.Context) execution.Capabilities { <-answer; return nodetest.Up() }})
	edge, _ := r.accept(7)
	r.state(StateBuilding)
	r.slept.Add(int64(time.Minute))
	edge.Ended()
	edge, _ = r.accept(8)
	close(answer)
	edge.Ready()
}

// §2.B "ReadyAck: reset backoff after 30 s stable", TU-23, faults row 35: the waits of a flapping link grow although
// each connection came up; they are small again after one that lived long enough.
func TestBackoffResetsAfterStableLink(t *testing.T) {
	if tries := flap(t, time.Hour, 0); tries != 6 {
		t.Errorf("without a stable link: %d tries", tries)
	}
	patience.Widen(t, 100*time.Millisecond, func(life time.Duration) bool { return flap(t, time.Millisecond, life) == 1 })
}

// flap loses six links, of which the last one lived for a while, and returns how many tries the node counts then.
func flap(t *testing.T, reset, life time.Duration) (tries int) {
	r := newRig(t, &nodetest.Adapter{}, func(c *Config) { c.Timers.BackoffReset = reset })
	for generation := uint64(1); generation <= 6; generation++ {
		edge := r.serve(generation)
		if generation == 6 {
			lived := time.NewTimer(life)
			<-lived.C
		}
		edge.Link.Close(transport.ReasonLost)
	}
	edge, _ := r.accept(7) // not confirmed, so it isn't stable, however long it lives
	edge.Ready()
	r.stop()
	return r.link.backoff.tries
}
