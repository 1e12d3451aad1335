package node_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// §2.D opening → admitted → executing → returning → lingering → gone.
func TestTunnel(t *testing.T) {
	in, out := int64(3), int64(4)
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(_ context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		if req.Method != "POST" || req.Path != "/v1/chat/completions" || req.Query != "a=b%20c" || req.Target != "m" || req.ContentLength != 5 {
			t.Errorf("request = %+v", req)
		}
		if got := req.Header["X-Test"]; len(got) != 2 || got[0] != "1" || got[1] != "\xff" {
			t.Errorf("header = %q", req.Header)
		}
		if req.Timers.FirstByte.Seconds() != 2 || req.Timers.Idle.Minutes() != 5 {
			t.Errorf("timers = %+v: the route's, else the node's", req.Timers)
		}
		body, err := io.ReadAll(req.Body)
		if string(body) != "hello" || err != nil {
			t.Errorf("body = %q, %v", body, err)
		}
		if err := sink.Head(201, http.Header{"Set-Cookie": {"a", "b"}, "Content-Length": {"8"}}); err != nil {
			return err
		}
		if err := sink.Body([]byte("answ")); err != nil {
			return err
		}
		if err := sink.Usage(execution.Usage{Input: &in, Output: &out}); err != nil {
			return err
		}
		return sink.Body([]byte("er !")) // usage is sent behind it all the same
	}})
	open := r.TunnelOpen("r1")
	tunnel := open.GetTunnel()
	tunnel.ContentLength, tunnel.Query, tunnel.FirstByteMs, tunnel.SessionId = 5, "a=b%20c", 2000, "s-1"
	tunnel.Headers = []*pb.Header{{Name: "x-test", Value: []byte("1")}, {Name: "X-Test", Value: []byte("\xff")}}
	open.Attempt = 2
	tn := r.Open(open).Body([]byte("hello")).End()
	if a := tn.Accepted(); a.GetSessionId() != "s-1" {
		t.Errorf("accepted = %v", a)
	}
	got := tn.Collect()
	if got.Kinds != "hbbue" || string(got.Body) != "answer !" || got.Head.GetStatus() != 201 || len(got.Head.GetHeaders()) != 3 {
		t.Errorf("got %q %q %v", got.Kinds, got.Body, got.Head)
	}
	if got.End.GetBytes() != 8 || got.Usage.GetInput() != 3 || got.Usage.GetOutput() != 4 || got.Usage.Cached != nil {
		t.Errorf("end %v, usage %v", got.End, got.Usage)
	}
	e := r.RunEnd("r1")
	if e.GetStatus() != pb.RunStatus_RUN_STATUS_COMPLETE || e.GetCode() != 0 || e.GetAttempt() != 2 || e.GetBytesIn() != 5 ||
		e.GetBytesOut() != 8 || e.GetUsage().GetInput() != 3 || e.GetAbandoned() || e.GetStartedMs() == 0 || e.GetEndedMs() < e.GetStartedMs() {
		t.Errorf("RunEnd = %v", e)
	}
	r.atRest()
	if n := r.RunEnds("r1"); n != 0 {
		t.Errorf("%d more RunEnds", n)
	}
}

// protocol.md §1.7: every open that was read whole gets exactly one rejection or RunEnd.
func TestRejections(t *testing.T) {
	hold := make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		<-hold
		return nodetest.Answer(sink, "ok")
	}}, capacity(1))
	long := strings.Repeat("x", 33<<10)
	for _, c := range []struct {
		name   string
		change func(*pb.ProviderTunnelRequest)
		want   execution.Code
	}{
		{"no run_id", func(q *pb.ProviderTunnelRequest) { q.RunId = "" }, execution.CodeBadRequest},
		{"long run_id", func(q *pb.ProviderTunnelRequest) { q.RunId = strings.Repeat("x", 65) }, execution.CodeBadRequest},
		{"bad run_id", func(q *pb.ProviderTunnelRequest) { q.RunId = "a b" }, execution.CodeBadRequest},
		{"no method", func(q *pb.ProviderTunnelRequest) { q.Method = "" }, execution.CodeBadRequest},
		{"no path", func(q *pb.ProviderTunnelRequest) { q.Path = "" }, execution.CodeBadRequest},
		{"absolute URL", func(q *pb.ProviderTunnelRequest) { q.Path = "http://x/" }, execution.CodeBadRequest},
		{"headers too long", func(q *pb.ProviderTunnelRequest) { q.Headers = []*pb.Header{{Name: "x", Value: []byte(long)}} }, execution.CodeBadRequest},
		{"negative length", func(q *pb.ProviderTunnelRequest) { q.ContentLength = -2 }, execution.CodeBadRequest},
		{"negative limit", func(q *pb.ProviderTunnelRequest) { q.DeadlineMs = -1 }, execution.CodeBadRequest},
		{"a lease", func(q *pb.ProviderTunnelRequest) { q.Lease = []byte("x") }, execution.CodeCredentialRefused},
		{"a slot", func(q *pb.ProviderTunnelRequest) { q.Slot = "s" }, execution.CodeCredentialRefused},
		{"unknown adapter", func(q *pb.ProviderTunnelRequest) { q.Adapter = "b" }, execution.CodeUnknownAdapter},
		{"another revision", func(q *pb.ProviderTunnelRequest) { q.AdapterRevision = 2 }, execution.CodeStaleProjection},
	} {
		open := r.TunnelOpen("bad")
		c.change(open.GetTunnel())
		t.Run(c.name, func(*testing.T) { r.rejects(r.Open(open).End(), c.want) })
	}
	first := r.Start("first")
	first.Accepted()
	r.inside(1)
	r.rejects(r.Start("first"), execution.CodeDuplicateRun) // the running one isn't harmed
	r.rejects(r.Start("second"), execution.CodeAdapterBusy)
	close(hold)
	if got := first.Collect(); got.Kinds != "hbe" {
		t.Errorf("the running one got %q %v", got.Kinds, got.Err)
	}
	r.RunEnd("first")
	if got := r.Start("second").Collect(); got.Kinds != "ahbe" {
		t.Errorf("after the first: %q", got.Kinds)
	}
	r.RunEnd("second")
	if n := r.RunEnds("bad") + r.RunEnds("first") + r.RunEnds("second"); n != 0 {
		t.Errorf("%d RunEnds for rejected work", n)
	}
	r.atRest()
}

// An adapter whose provider is down refuses with the reason; a draining node refuses everything.
func TestRejectsUnavailableAndDraining(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnProbe: func(context.Context) execution.Capabilities {
		return execution.Capabilities{Reason: "connection refused"}
	}})
	got := r.Start("r1").Collect()
	if f := got.Rejected.GetFailure(); f.GetCode() != pb.FailureCode_FAILURE_CODE_ADAPTER_UNAVAILABLE || f.GetText() != "the provider is unavailable: connection refused" {
		t.Errorf("got %v", got.Rejected)
	}
	r.x.Drain()
	s := r.Status("draining", func(s *pb.NodeStatus) bool { return s.GetDraining() })
	if len(s.GetAdapters()) != 1 {
		t.Errorf("status = %v", s)
	}
	r.rejects(r.Start("r2"), execution.CodeNodeDraining)
	r.atRest()
}

// A rejected stream with a large body in flight: the input is discarded until the edge closes, nobody is stuck.
func TestRejectionDiscardsInput(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	open := r.TunnelOpen("r1")
	open.GetTunnel().Adapter, open.GetTunnel().ContentLength = "b", 4<<20
	r.rejects(r.Open(open).Body(make([]byte, 4<<20)).End(), execution.CodeUnknownAdapter)
	r.atRest()
}

// The edge that doesn't close a rejected stream loses it after the limit.
func TestRejectedStreamIsClosedAfterLimit(t *testing.T) {
	patience.Widen(t, soon, func(limit time.Duration) (keptUp bool) {
		r := newRig(t, &nodetest.Adapter{}, timers(func(t *node.Timers) { t.RejectLinger = limit }))
		open := r.TunnelOpen("r1")
		open.GetTunnel().Adapter = "b"
		tn := r.Open(open)
		f, err := tn.Next()
		if err != nil { // the limit was over before the rejection was written
			return false
		}
		if f.Msg.GetRejected() == nil {
			t.Fatalf("got %v", f)
		}
		if _, err := tn.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the limit: %v, want EOF", err)
		}
		return true
	})
}

// §2.D opening: generation ≠ link's → K.
func TestWrongGenerationKillsLink(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	open := r.TunnelOpen("r1")
	open.ConnectionGeneration = 6
	r.Breach(open)
	if g := r.Goodbye(); g.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_PROTOCOL {
		t.Errorf("goodbye = %v", g)
	}
	r.Ended()
	if n := r.adapter.Calls.Load(); n != 0 {
		t.Error("the provider was called under another generation")
	}
}

// connectRaw makes a connection whose edge speaks the multiplexer byte by byte, and waits for Ready.
func (r *rig) connectRaw(generation uint64) *nodetest.RawEdge {
	r.t.Helper()
	edge, local := nodetest.ConnPair(r.t)
	raw := nodetest.NewRawEdge(r.t, edge)
	r.attach(generation, local)
	r.session.Serve()
	raw.AwaitReady(r.t)
	return raw
}

// §2.D opening: the open read has a limit of its own, and costs only its stream.
func TestOpenReadLimit(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{}, timers(func(t *node.Timers) { t.OpenRead = 10 * soon }))
	raw := r.connectRaw(9)
	if err := errors.Join(raw.OpenStream(2), raw.SendBytes(2, 100, []byte("a part of an open"))); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, "the stream is closed", func() bool { return raw.Closed(2) })
	if err := r.mux.Err(); err != nil {
		t.Errorf("the link ended: %v", err)
	}
	if got := r.Start("r1").Collect(); got.Kinds != "ahbe" {
		t.Errorf("after it: %q %v", got.Kinds, got.Err)
	}
}

// TU-28, faults rows 46 and 48: bad lengths, garbage and unknown kinds on a work stream end that stream before memory
// is reserved; on the control stream they end the link. Other runs go on.
func TestBadFrames(t *testing.T) {
	open := func(runID string, length int64) *pb.WorkOpen {
		return &pb.WorkOpen{ConnectionGeneration: 9, Attempt: 1, Work: &pb.WorkOpen_Tunnel{Tunnel: &pb.ProviderTunnelRequest{
			RunId: runID, Adapter: "a", AdapterRevision: 1, Method: "POST", Path: "/", ContentLength: length}}}
	}
	r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang})
	raw := r.connectRaw(9)
	stream := uint32(0)
	next := func() uint32 {
		stream += 2
		if err := raw.OpenStream(stream); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	for _, c := range []struct {
		name   string
		length uint32
		body   []byte
	}{
		{"2^32-1", 0xFFFFFFFF, nil}, {"2^31-1", 0x7FFFFFFF, nil}, {"cap+1", transport.MaxOpen + 1, nil}, {"zero", 0, nil},
		{"garbage", 3, []byte{0xFF, 0xFF, 0xFF}}, {"an open of no kind", 2, []byte{0x10, 0x01}},
	} {
		id := next()
		if err := raw.SendBytes(id, c.length, c.body); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, c.name+": the stream is closed", func() bool { return raw.Closed(id) })
	}
	// The same on the input of a running tunnel: one terminal error(protocol).
	for i, length := range []uint32{0xFFFFFFFF, transport.MaxInput + 1, 0} {
		id, runID := next(), "in-"+string(rune('a'+i))
		if err := errors.Join(raw.Send(id, open(runID, -1)), raw.SendBytes(id, length, nil)); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the tunnel's stream is closed", func() bool { return raw.Closed(id) })
		frames := raw.Frames(id)
		last := new(pb.ProviderTunnelFrame)
		if len(frames) != 2 || proto.Unmarshal(frames[1], last) != nil || last.GetError().GetCode() != pb.FailureCode_FAILURE_CODE_PROTOCOL {
			t.Errorf("length %d: %d frames, the last %v", length, len(frames), last)
		}
	}
	if got := r.Snapshot(); len(got.Running) != 0 {
		t.Errorf("still running: %v", got.Running)
	}
	if err := raw.SendBytes(nodetest.ControlStream, 0xFFFFFFFF, nil); err != nil {
		t.Fatal(err)
	}
	nodetest.Receive(t, "the link's end", raw.Ended)
	if err := r.mux.Err(); err.(*transport.LinkError).Reason != transport.ReasonProtocol {
		t.Errorf("link ended with %v", err)
	}
}

// Snapshot is the executor's.
func (r *rig) Snapshot() node.Snapshot { return r.x.Snapshot() }
