package node_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/router"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// ollama is a whole OLLAMA_API command on the adapter "a".
func ollama(id, method, path string) *pb.NodeCommandRequest {
	return &pb.NodeCommandRequest{CommandId: id, Type: pb.CommandType_COMMAND_TYPE_OLLAMA_API, SessionId: "s-1", Adapter: "a", Method: method, Path: path}
}

// rejectsCommand checks that an OLLAMA_API command is answered with one rejection, and that no provider is asked.
func (r *rig) rejectsCommand(q *pb.NodeCommandRequest, code execution.Code) {
	r.t.Helper()
	asked := r.adapter.Commands.Load()
	got := r.openCommand(q).Collect()
	if got.Kinds != "r" || got.Rejected.GetFailure().GetCode() != pb.FailureCode(code) || !got.Rejected.GetNeverStarted() || got.Rejected.GetFailure().GetText() == "" {
		r.t.Errorf("%s %q on %q: got %q %v (%v), want a rejection with %s", q.GetMethod(), q.GetPath(), q.GetAdapter(), got.Kinds, got.Rejected, got.Err, code)
	}
	if n := r.adapter.Commands.Load(); n != asked {
		r.t.Errorf("%s %q: the provider was asked", q.GetMethod(), q.GetPath())
	}
}

// R8: each request of the list reaches the adapter as it is, and its answer comes back as it is.
func TestOllamaCommand(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{}, capacity(1))
	r.Start("r1").Collect() // a node whose places are taken answers as well
	for path, method := range map[string]string{"/api/version": "GET", "/api/tags": "GET", "/api/ps": "GET", "/api/show": "POST"} {
		tn := r.openCommand(ollama("c"+path[5:], method, path))
		want := method + " " + path
		if method == "POST" {
			tn.Body([]byte(`{"model":"m"}`)).End()
			want += ` {"model":"m"}`
		}
		if id := tn.Accepted().GetSessionId(); id != "s-1" {
			t.Errorf("session_id %q", id)
		}
		got := tn.Collect()
		if got.Kinds != "hbe" || string(got.Body) != want || got.Head.GetStatus() != 200 || got.End.GetBytes() != int64(len(want)) {
			t.Errorf("%s %s: %q %v %q %v", method, path, got.Kinds, got.Head, got.Body, got.Error)
		}
	}
	r.atRest()
	if n := r.RunEnds("ctags"); n != 0 {
		t.Error("a command was told of as an execution")
	}
}

// HT-15, E43: what isn't on the list is refused whatever its spelling, and no provider hears of it.
func TestOllamaCommandPaths(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	for _, path := range []string{"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete",
		"/API/delete", "/api/delete?", "/api/\\delete", "/api/delete", "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/chat",
		"/api/generate", "/api/tags?x", "/api/tags/", "/api/../api/tags", "/api/%74ags", "/v1/models", "", "/", "*", "http://evil.example/api/tags"} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			r.rejectsCommand(ollama("c1", method, path), execution.CodeBadRequest)
		}
	}
	for _, q := range []*pb.NodeCommandRequest{ollama("c1", "POST", "/api/tags"), ollama("c1", "GET", "/api/show"), ollama("c1", "HEAD", "/api/version"),
		ollama("c1", "get", "/api/tags"), ollama("c1", "", "/api/tags")} {
		r.rejectsCommand(q, execution.CodeBadRequest)
	}
	r.atRest()
}

func TestOllamaCommandAdapters(t *testing.T) {
	type plain struct{ execution.Provider }
	adapter := &nodetest.Adapter{}
	r := newRig(t, adapter, func(s *setup) {
		s.build = func(spec router.Spec) (execution.Provider, error) {
			if spec.Kind == "plain" {
				return plain{adapter}, nil
			}
			return nil, execution.Failf(execution.CodeBadRequest, execution.OriginNode, "no such kind")
		}
		s.adapters = []*pb.AdapterConfig{{Name: "openai", Kind: "plain", MaxConcurrency: 1, AdapterRevision: 1}, {Name: "broken", Kind: "?", MaxConcurrency: 1, AdapterRevision: 1}}
	})
	for name, want := range map[string]execution.Code{"": execution.CodeUnknownAdapter, "b": execution.CodeUnknownAdapter,
		"openai": execution.CodeBadRequest, "broken": execution.CodeAdapterUnavailable} {
		q := ollama("c1", "GET", "/api/tags")
		q.Adapter = name
		r.rejectsCommand(q, want)
	}
	first, _ := r.ask(&pb.NodeCommandRequest{CommandId: "c2", Type: pb.CommandType_COMMAND_TYPE_CAPABILITIES, SessionId: "s-1", Adapter: "b"})
	if c := first.GetRejected().GetFailure().GetCode(); c != pb.FailureCode_FAILURE_CODE_UNKNOWN_ADAPTER {
		t.Errorf("capabilities of nothing: %v", first)
	}
	r.atRest()
}

// A command that wasn't negotiated isn't one.
func TestOllamaCommandIsNegotiated(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{}, func(s *setup) { s.features = []pb.Feature{pb.Feature_FEATURE_BACKGROUND} })
	r.rejectsCommand(ollama("c1", "GET", "/api/tags"), execution.CodeBadRequest)
	if first, _ := r.command("c2", pb.CommandType_COMMAND_TYPE_CAPABILITIES); first.GetAccepted() == nil {
		t.Errorf("capabilities: %v", first)
	}
}

// The body of a command is bounded and belongs to POST alone; its answer is bounded, too. Lengths are checked as a
// tunnel's.
func TestOllamaCommandBounds(t *testing.T) {
	adapter := &nodetest.Adapter{}
	r := newRig(t, adapter)
	show := func(id string) *nodetest.Tunnel { return r.openCommand(ollama(id, "POST", "/api/show")) }
	want := func(what string, tn *nodetest.Tunnel, kinds string, code execution.Code, asked int64) {
		t.Helper()
		before := adapter.Commands.Load()
		got := tn.Collect()
		if got.Kinds != kinds || got.Error.GetCode() != pb.FailureCode(code) || got.Error != nil && asked == 0 && !got.Error.GetNothingSent() {
			t.Errorf("%s: %q %v (%v), want %q with %s", what, got.Kinds, got.Error, got.Err, kinds, code)
		}
		if n := adapter.Commands.Load() - before; n > asked {
			t.Errorf("%s: the provider was asked", what)
		}
	}
	whole := bytes.Repeat([]byte("x"), 64<<10)
	adapter.OnCommand = func(_ context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return err
		}
		return nodetest.Answer(sink, fmt.Sprint("read ", len(body)))
	}
	want("64 KiB", show("c1").Body(whole).End(), "ahbe", 0, 1)
	want("64 KiB and a byte", show("c2").Body(whole).Body([]byte("x")).End(), "ax", execution.CodeBodyTooLarge, 0)
	want("much more", show("c3").Body(whole).Body(whole).Body(whole).Body(whole).Body(whole).Body(whole).End(), "ax", execution.CodeBodyTooLarge, 0)
	want("an end that lies", show("c4").Body([]byte("{}")).EndOf(7), "ax", execution.CodeBadRequest, 0)
	want("nothing", show("c5").End(), "ahbe", 0, 1)

	gap := show("c6")
	if err := gap.AppendBody(5, []byte("x")); err != nil || gap.Flush() != nil {
		t.Fatal(err)
	}
	want("a gap in the numbers", gap, "ax", execution.CodeProtocol, 0)

	// The command may be on its way to the provider when that comes; it is cancelled then.
	adapter.OnCommand = nodetest.Hang
	got := r.openCommand(ollama("c7", "GET", "/api/tags")).Body([]byte("x")).Collect()
	if got.Kinds != "ax" || got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_BAD_REQUEST {
		t.Errorf("a body of a GET: %q %v", got.Kinds, got.Error)
	}
	r.atRest()
}

func TestOllamaCommandAnswers(t *testing.T) {
	adapter := &nodetest.Adapter{}
	r := newRig(t, adapter)
	piece := make([]byte, 1<<20)
	send := func(n int) func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error {
		return func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
			if err := sink.Head(200, http.Header{}); err != nil {
				return err
			}
			for range n {
				if err := sink.Body(piece); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, c := range []struct {
		what  string
		do    func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error
		body  int
		code  execution.Code
		kinds string // without bodies
	}{
		{"16 MiB", send(16), 16 << 20, 0, "ahe"},
		{"a MiB more", send(17), 16 << 20, execution.CodeUpstreamError, "ahx"},
		{"an error status", func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
			if err := sink.Head(404, http.Header{}); err != nil {
				return err
			}
			return sink.Body([]byte(`{"error":"model 'm' not found"}`))
		}, 31, 0, "ahe"},
		{"refused by the adapter", func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error {
			return execution.Failf(execution.CodeBadRequest, execution.OriginNode, "not on the list")
		}, 0, execution.CodeBadRequest, "ax"},
		{"no connection", func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error {
			f := execution.Failf(execution.CodeUpstreamConnect, execution.OriginProvider, "connection refused")
			f.NothingSent = true
			return f
		}, 0, execution.CodeUpstreamConnect, "ax"},
		{"nothing at all", func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error { return nil }, 0, execution.CodeInternal, "ax"},
		{"a crash", func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error { panic("S3CR3T") }, 0, execution.CodeAdapterPanic, "ax"},
	} {
		adapter.OnCommand = c.do
		got := r.openCommand(ollama("c1", "GET", "/api/ps")).Collect()
		if strings.ReplaceAll(got.Kinds, "b", "") != c.kinds || len(got.Body) != c.body || got.Error.GetCode() != pb.FailureCode(c.code) ||
			strings.Contains(got.Error.GetText(), "S3CR3T") {
			t.Errorf("%s: %q, %d bytes, %v", c.what, strings.ReplaceAll(got.Kinds, "b", ""), len(got.Body), got.Error)
		}
		r.atRest() // so that the id is free again
	}
}

// A command is cancelled by its command_id and by the close of its stream, each for itself, and touches nothing else.
func TestCommandIsCancelled(t *testing.T) {
	for _, how := range []string{"request", "close", "request while it reads its body", "deadline"} {
		t.Run(how, func(t *testing.T) {
			called, cause := make(chan struct{}, 2), make(chan error, 2)
			r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang,
				OnCommand: func(ctx context.Context, _ *execution.TunnelRequest, _ execution.TunnelSink) error {
					called <- struct{}{}
					<-ctx.Done()
					cause <- context.Cause(ctx)
					return context.Cause(ctx)
				}}, timers(func(x *node.Timers) {
				if how == "deadline" {
					x.Command = 10 * soon
				}
			}))
			r.Start("r1").Accepted()
			r.inside(1)
			q, want := ollama("c1", "GET", "/api/ps"), execution.CauseAPI
			if how == "request while it reads its body" {
				q = ollama("c1", "POST", "/api/show")
			}
			tn := r.openCommand(q)
			tn.Accepted()
			if q.GetMethod() == "GET" {
				nodetest.Receive(t, "the provider is asked", called)
			}
			switch how {
			case "deadline":
				want = execution.CauseDeadline
			case "close":
				tn.Close()
				want = execution.CauseClientGone
			default:
				r.Link.SendCancel("c1", execution.CauseAPI)
				if got := r.CancelResult("c1"); got.GetResult() != pb.CancelOutcome_CANCEL_OUTCOME_CANCELLING {
					t.Errorf("cancel: %v", got)
				}
			}
			if how != "close" {
				if got := tn.Collect(); got.Kinds != "x" || got.Error.GetCode() != pb.FailureCode(want.Code()) {
					t.Errorf("%q %v %v", got.Kinds, got.Error, got.Err)
				}
			}
			if q.GetMethod() == "GET" {
				if got := nodetest.Receive(t, "the cancel", cause); got != error(want) {
					t.Errorf("cause %v, want %v", got, want)
				}
			}
			if _, now := r.adapter.Peak(); now != 1 {
				t.Error("the execution beside it was cancelled, too")
			}
			r.Link.SendCancel("r1", execution.CauseAPI)
			r.RunEnd("r1")
		})
	}
}

// A cancel of a command that was answered changes nothing, and isn't remembered.
func TestCancelOfAnAnsweredCommand(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	tn := r.openCommand(ollama("c1", "GET", "/api/ps"))
	for tn.Accepted(); ; {
		if f, err := tn.Next(); err != nil {
			t.Fatal(err)
		} else if f.Msg.GetEnd() != nil {
			break
		}
	}
	r.Link.SendCancel("c1", execution.CauseAPI)
	if got := r.CancelResult("c1"); got.GetResult() != pb.CancelOutcome_CANCEL_OUTCOME_ALREADY_ENDED {
		t.Errorf("cancel: %v", got)
	}
	tn.Close()
	r.atRest()
	if got := r.openCommand(ollama("c1", "GET", "/api/ps")).Collect(); got.Kinds != "ahbe" {
		t.Errorf("the id again: %q %v", got.Kinds, got.Rejected)
	}
}

// OL-10 for commands: a link that ends takes its commands with it. The next connection has its own four.
func TestCommandsEndWithTheirLink(t *testing.T) {
	called, cause, let := make(chan struct{}, 8), make(chan error, 8), make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnCommand: func(ctx context.Context, _ *execution.TunnelRequest, _ execution.TunnelSink) error {
		called <- struct{}{}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		<-let // it takes its time
		return context.Cause(ctx)
	}})
	for _, id := range []string{"c1", "c2", "c3", "c4"} {
		r.openCommand(ollama(id, "GET", "/api/ps")).Accepted()
		nodetest.Receive(t, "the provider is asked", called)
	}
	r.again()
	for range 4 {
		if got := nodetest.Receive(t, "the cancel", cause); got != error(execution.CauseLinkLost) {
			t.Errorf("cause %v", got)
		}
	}
	tn := r.openCommand(ollama("d1", "GET", "/api/ps"))
	tn.Accepted()
	nodetest.Receive(t, "the provider is asked", called)
	tn.Close()
	nodetest.Receive(t, "the cancel", cause)
	close(let)
	r.atRest()
}

// §2.B draining: a work stream is rejected (node_draining), whatever it carries. What is in work is waited for, or
// cancelled when the grace is over.
func TestCommandsOfADrainingNode(t *testing.T) {
	let := make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnCommand: func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		if req.Path == "/api/ps" {
			<-let
			return nodetest.Answer(sink, "ok")
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}})
	answered, cancelled := r.openCommand(ollama("c1", "GET", "/api/ps")), r.openCommand(ollama("c2", "GET", "/api/tags"))
	answered.Accepted()
	cancelled.Accepted()
	nodetest.Eventually(t, "both are asked", func() bool { return r.adapter.Commands.Load() == 2 })
	r.x.Drain()
	r.rejectsCommand(ollama("c3", "GET", "/api/ps"), execution.CodeNodeDraining)
	for _, kind := range []pb.CommandType{pb.CommandType_COMMAND_TYPE_CAPABILITIES, pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS} {
		first, _ := r.command("c4", kind)
		if c := first.GetRejected().GetFailure().GetCode(); c != pb.FailureCode_FAILURE_CODE_NODE_DRAINING {
			t.Errorf("%v: %v", kind, first)
		}
	}
	close(let)
	if got := answered.Collect(); got.Kinds != "hbe" {
		t.Errorf("in work at the drain: %q %v", got.Kinds, got.Error)
	}
	select {
	case <-r.x.Quiet():
		t.Error("the node would leave while a command is in work")
	default:
	}
	r.x.CancelAll(execution.CauseNodeDraining)
	if got := cancelled.Collect(); got.Kinds != "x" || got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_DRAINING {
		t.Errorf("when the grace is over: %q %v", got.Kinds, got.Error)
	}
	nodetest.Receive(t, "quiet", r.x.Quiet())
}

// §4.3: an open of another generation ends the link, a command's as well.
func TestCommandOfAnotherGeneration(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	r.Breach(&pb.WorkOpen{ConnectionGeneration: 6, Work: &pb.WorkOpen_Command{Command: ollama("c1", "GET", "/api/ps")}})
	if g := r.Goodbye(); g.GetCode() != pb.GoodbyeCode_GOODBYE_CODE_PROTOCOL {
		t.Errorf("goodbye = %v", g)
	}
	if r.adapter.Commands.Load() != 0 {
		t.Error("the provider was asked")
	}
}

// An adapter that a refresh removes stays open for the command that uses it.
func TestCommandOutlivesItsAdapter(t *testing.T) {
	begun, let := make(chan struct{}), make(chan struct{})
	adapter := &nodetest.Adapter{OnCommand: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		close(begun)
		<-let
		return nodetest.Answer(sink, "ok")
	}}
	r := newRig(t, adapter)
	tn := r.openCommand(ollama("c1", "GET", "/api/ps"))
	tn.Accepted()
	nodetest.Receive(t, "the command", begun)
	r.session.Apply(context.Background(), &pb.NodeConfigPayload{Projection: 2})
	if n := adapter.Closes.Load(); n != 0 {
		t.Error("the driver was closed under a command")
	}
	close(let)
	if got := tn.Collect(); got.Kinds != "hbe" {
		t.Errorf("%q %v", got.Kinds, got.Error)
	}
	nodetest.Eventually(t, "the driver is closed", func() bool { return adapter.Closes.Load() == 1 })
}

// An edge that doesn't read what it asked for keeps its command in work and nobody else's.
func TestUnreadCommandAnswer(t *testing.T) {
	adapter := &nodetest.Adapter{OnCommand: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		if err := sink.Head(200, http.Header{}); err != nil {
			return err
		}
		for range 8 {
			if err := sink.Body(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
		return nil
	}}
	r := newRig(t, adapter)
	tn := r.openCommand(ollama("c1", "POST", "/api/show")).Body([]byte("{}")).End()
	tn.Accepted()
	for i := range 20 {
		if first, _ := r.command(fmt.Sprintf("d%d", i), pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS); first.GetAccepted() == nil {
			t.Fatalf("beside it: %v", first)
		}
	}
	r.Link.SendCancel("c1", execution.CauseAPI)
	got := tn.Collect()
	if got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_CANCELLED || len(got.Body) == 0 || len(got.Body) == 8<<20 {
		t.Errorf("%d bytes, %v, %v", len(got.Body), got.Error, got.Err)
	}
	if err := tn.After(); err != nil && err != io.EOF {
		t.Error(err)
	}
	r.atRest()
}

// An edge that never closes an answered command's stream doesn't keep it for ever.
func TestAnsweredCommandIsClosedInTheEnd(t *testing.T) {
	patience.Widen(t, soon, func(limit time.Duration) (keptUp bool) {
		r := newRig(t, &nodetest.Adapter{}, timers(func(x *node.Timers) { x.Linger = limit }))
		tn := r.openCommand(ollama("c1", "GET", "/api/ps"))
		for {
			if f, err := tn.Next(); err != nil { // the limit was over before the answer was written
				return false
			} else if f.Msg.GetEnd() != nil {
				break
			}
		}
		if _, err := tn.Next(); err != io.EOF {
			t.Errorf("after the answer: %v", err)
		}
		return true
	})
}
