package service_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// desk is the service over the real registry and links, with fake nodes that follow scripts.
type desk struct {
	*whole
	t      *testing.T
	closed chan struct{} // when the test is over: scripts that wait for nothing end
	end    func()
}

// onFakeTime runs a test alone, on fake time: every limit is exact there.
func onFakeTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	patience.Alone(t, func(t *testing.T) { patience.Bubble(t, test) })
}

func newDesk(t *testing.T, change func(*service.Config), nodes ...string) *desk {
	d := &desk{whole: &whole{}, t: t, closed: make(chan struct{})}
	d.end = sync.OnceFunc(func() { close(d.closed) })
	var records []config.NodeRecord
	for _, id := range nodes {
		records = append(records, edgetest.Record(id, 1))
	}
	o := edgetest.Options{Nodes: records, Runs: &late{d.whole}}
	if patience.IsAlone() { // on fake time
		o.Listener = edgetest.Listen()
	}
	d.Edge = edgetest.Start(t, o)
	cfg := service.Config{State: d.State, Scheduler: d.Scheduler, Nodes: d, Commands: d.targets, Log: zerolog.Nop()}
	if !patience.IsAlone() { // in real time limits that nothing is said about don't pass
		cfg.DispatchLimit, cfg.TerminalWait = 2*patience.Limit, 2*patience.Limit
	}
	if change != nil {
		change(&cfg)
	}
	d.Service = service.New(cfg)
	t.Cleanup(func() {
		d.Service.Drain()
		d.Service.CancelAll(execution.CauseEdgeDraining)
		ctx, cancel := context.WithTimeout(context.Background(), patience.Limit)
		defer cancel()
		if err := d.Service.Wait(ctx); err != nil {
			t.Errorf("commands are still live: %v", err)
		}
	})
	return d
}

// targets is what edge.go makes of the registry.
func (d *desk) targets() (all []service.CommandTarget) {
	for _, c := range d.Registry.Connections() {
		all = append(all, service.CommandTarget{NodeID: c.NodeID, Generation: c.Generation, State: c.State(), Conn: c})
	}
	return all
}

// asked is one command as a fake node sees it.
type asked struct {
	*transport.Stream
	*pb.NodeCommandRequest
	node     *edgetest.Node
	seq      uint64
	body     []byte
	accepted bool // answer needn't say so
}

// connect registers a node whose commands are answered by script; Ready is left to the test.
func (d *desk) connect(id string, script func(a *asked), features ...pb.Feature) *edgetest.Node {
	d.t.Helper()
	hello := edgetest.Hello(id)
	hello.Features = append(features, pb.Feature_FEATURE_OLLAMA_COMMAND)
	return d.connectAs(id, hello, script)
}

func (d *desk) connectAs(id string, hello *pb.RegisterRequest, script func(a *asked)) *edgetest.Node {
	d.t.Helper()
	defer d.t.Cleanup(d.end) // before the node waits for its scripts
	return edgetest.Dial(d.t, d.Edge, id, edgetest.NodeOptions{Hello: hello, Work: func(n *edgetest.Node, s *transport.Stream) {
		defer s.Close()
		open, err := s.ReadOpen(patience.Limit)
		if err != nil || open.GetCommand() == nil {
			return
		}
		if open.GetConnectionGeneration() != n.Generation() {
			d.t.Errorf("the open names generation %d, this is %d", open.GetConnectionGeneration(), n.Generation())
		}
		a := &asked{Stream: s, NodeCommandRequest: open.GetCommand(), node: n}
		script(a)
		a.awaitEOF() // the edge closes first
	}})
}

// ready connects a node that takes work.
func (d *desk) ready(id string, script func(a *asked)) *edgetest.Node {
	d.t.Helper()
	n := d.connect(id, script)
	n.AwaitReady(d.t)
	return n
}

func (a *asked) awaitEOF() {
	for {
		if _, err := a.ReadInput(); err != nil {
			return
		}
	}
}

// input reads the body of a POST.
func (a *asked) input() []byte {
	for {
		in, err := a.ReadInput()
		if err != nil || in.End != nil {
			return a.body
		}
		a.body = append(a.body, in.Body...)
	}
}

func (a *asked) says(m *pb.NodeCommandResponse) {
	a.seq++
	m.Seq, m.SessionId = a.seq, a.GetSessionId()
	_ = a.Write(m)
}

func (a *asked) frame(f *pb.ProviderTunnelFrame) {
	a.seq++
	f.Seq = a.seq
	_ = a.Write(f)
}

func (a *asked) isOllama() bool { return a.GetType() == pb.CommandType_COMMAND_TYPE_OLLAMA_API }

func (a *asked) accept() {
	accepted := &pb.Accepted{SessionId: a.GetSessionId()}
	if a.isOllama() {
		a.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: accepted}})
		return
	}
	a.says(&pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_Accepted{Accepted: accepted}})
}

func (a *asked) reject(code execution.Code) {
	r := &pb.Rejected{NeverStarted: true, Failure: &pb.Failure{Code: pb.FailureCode(code), Origin: pb.Origin_ORIGIN_NODE, Text: "refused"}}
	if a.isOllama() {
		a.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: r}})
		return
	}
	a.says(&pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_Rejected{Rejected: r}})
}

func (a *asked) head(status int32) {
	a.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Head{Head: &pb.TunnelHead{Status: status, Headers: []*pb.Header{
		{Name: "content-type", Value: []byte("application/json")}}}}})
}

func (a *asked) piece(p []byte) {
	for len(p) > 0 {
		n := min(len(p), transport.MaxBody)
		a.seq++
		if a.AppendBody(a.seq, p[:n]) != nil || a.Flush() != nil {
			return
		}
		p = p[n:]
	}
}

func (a *asked) end(bytes int64) {
	a.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_End{End: &pb.TunnelEnd{Bytes: bytes}}})
}

// answer is a whole answer of either kind.
func (a *asked) answer() {
	if !a.accepted {
		a.accept()
	}
	switch a.GetType() {
	case pb.CommandType_COMMAND_TYPE_CAPABILITIES:
		a.says(&pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_Capabilities{Capabilities: &pb.Capabilities{Adapters: []*pb.AdapterState{
			{Name: "loopback", Available: true, Version: "1", Capacity: 4, InFlight: 2, Models: []*pb.ModelState{{Name: "m", Loaded: true, Context: 4096}, {Name: "n"}}},
			{Name: strings.Repeat("x", 5000), Reason: strings.Repeat("y", 5000), Version: "unknown", Capacity: -1}}}}})
	case pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS:
		a.says(&pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_TransportStatus{TransportStatus: &pb.TransportStatus{
			ConnectionGeneration: a.node.Generation(), LinkAgeMs: 7, OpenStreams: 3, InFlight: 2}}})
	default:
		said := a.GetMethod() + " " + a.GetPath() + " " + a.GetAdapter()
		if a.GetMethod() == "POST" {
			said += " " + string(a.input())
		}
		a.head(200)
		a.piece([]byte(said))
		a.end(int64(len(said)))
	}
}

func tags(nodeID string) *service.Command {
	return &service.Command{NodeID: nodeID, Type: service.CommandOllamaAPI, SessionID: "s-1", Adapter: "loopback", Method: "GET", Path: "/api/tags"}
}

func status(nodeID string) *service.Command {
	return &service.Command{NodeID: nodeID, Type: service.CommandTransportStatus, SessionID: "s-1"}
}

// ask sends a command and waits.
func (d *desk) ask(c *service.Command) *service.CommandResult {
	d.t.Helper()
	return <-d.asking(context.Background(), c)
}

// asking sends a command.
func (d *desk) asking(ctx context.Context, c *service.Command) <-chan *service.CommandResult {
	done := make(chan *service.CommandResult, 1)
	go func() { done <- d.Command(ctx, c) }()
	return done
}

// receive waits for what must come.
func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	return patience.Receive(t, what, from)
}

func codeOf(r *service.CommandResult) execution.Code {
	if r.Failure == nil {
		return execution.CodeOK
	}
	return r.Failure.Code
}

// refused checks that a command ended with a code before anything was sent.
func (d *desk) refused(what string, r *service.CommandResult, code execution.Code) {
	d.t.Helper()
	if codeOf(r) != code || r.OK() || !r.Failure.NothingSent || r.Failure.Text == "" || r.HeadSent {
		d.t.Errorf("%s: %+v %+v, want %s", what, r, r.Failure, code)
	}
}

// cancelOf waits for a CancelRequest and returns its id and cause.
func cancelOf(t *testing.T, n *edgetest.Node) (string, pb.CancelCause) {
	t.Helper()
	c := edgetest.Await(t, n, patience.Limit, (*pb.EdgeControl).GetCancel)
	return c.GetRunId(), c.GetCause()
}

// R8: the three commands, each with its answer, correlated by command_id and session_id. None takes a place or is a run.
func TestCommands(t *testing.T) {
	d := newDesk(t, nil, "a")
	ids := make(chan string, 8)
	d.ready("a", func(a *asked) {
		ids <- a.GetCommandId()
		if a.GetSessionId() != "s-1" {
			t.Errorf("session_id %q", a.GetSessionId())
		}
		a.answer()
	})
	check := func(what string, r *service.CommandResult, ok bool) {
		t.Helper()
		id := receive(t, "the command", ids)
		if r.Failure != nil || !ok || r.NodeID != "a" || r.CommandID != id || r.SessionID != "s-1" || r.Generation == 0 || r.Duration <= 0 {
			t.Errorf("%s: %+v %v", what, r, r.Failure)
		}
		if len(d.Runs()) != 0 || d.Live() != 0 || d.Scheduler.Snapshot().Places[0].InFlight != 0 {
			t.Errorf("%s: it is among the runs, or took a place", what)
		}
	}
	r := d.ask(&service.Command{NodeID: "a", Type: service.CommandCapabilities, SessionID: "s-1"})
	check("capabilities", r, len(r.Capabilities) == 2 && r.Capabilities[0].InFlight == 2 && len(r.Capabilities[1].Name) == 64 &&
		len(r.Capabilities[1].Reason) == 256 && r.Capabilities[1].Capacity == 0)
	if m := r.Capabilities[0].Models; len(m) != 2 || m[0] != (service.ModelCapabilities{Name: "m", Loaded: true, Context: 4096}) || m[1].Loaded {
		t.Errorf("models %+v", m)
	}
	r = d.ask(status("a"))
	check("status", r, r.Transport != nil && *r.Transport == service.TransportStatus{Generation: r.Generation, LinkAgeMS: 7, OpenStreams: 3, InFlight: 2})
	r = d.ask(tags("a"))
	check("tags", r, r.Status == 200 && string(r.Body) == "GET /api/tags loopback" && r.Header.Get("Content-Type") == "application/json" && r.Bytes == 22)
	show := tags("")
	show.Method, show.Path, show.Body = "POST", "/api/show", []byte(`{"model":"m"}`)
	r = d.ask(show)
	check("show, of any node", r, string(r.Body) == `POST /api/show loopback {"model":"m"}`)
	show.Body = bytes.Repeat([]byte("x"), service.MaxCommandBody)
	r = d.ask(show)
	check("a body of 64 KiB", r, len(r.Body) == service.MaxCommandBody+len("POST /api/show loopback "))
	show.Body = nil
	r = d.ask(show)
	check("no body", r, string(r.Body) == "POST /api/show loopback ")
}

// sink takes an answer as it comes.
type sink struct {
	mu      sync.Mutex
	node    string
	status  int
	body    bytes.Buffer
	flushed int
	ends    int
	fail    error
	begun   chan struct{} // closed at the first piece
	once    sync.Once
}

func (s *sink) Placed(at service.Placement)          { s.node = at.Node }
func (s *sink) Head(status int, _ http.Header) error { s.status = status; return nil }
func (s *sink) End() error                           { s.ends++; return nil }
func (s *sink) Body(p []byte, flush bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.body.Write(p)
	if flush {
		s.flushed = s.body.Len()
	}
	if s.begun != nil {
		s.once.Do(func() { close(s.begun) })
	}
	return s.fail
}

// A sink gets the answer as it comes, an error status like any other.
func TestCommandSink(t *testing.T) {
	d := newDesk(t, nil, "a")
	next := make(chan struct{})
	n := d.ready("a", func(a *asked) {
		a.accept()
		a.head(404)
		a.piece([]byte(`{"error":`))
		<-next
		a.piece([]byte(`"no"}`))
		a.end(14)
	})
	s := &sink{begun: make(chan struct{})}
	c := tags("a")
	c.Sink = s
	done := d.asking(context.Background(), c)
	receive(t, "the first piece", s.begun)
	s.mu.Lock()
	if s.flushed != 9 {
		t.Errorf("%d bytes were flushed", s.flushed)
	}
	s.mu.Unlock()
	close(next)
	r := receive(t, "the result", done)
	if !r.OK() || s.node != "a" || s.status != 404 || s.body.String() != `{"error":"no"}` || s.ends != 1 || r.Status != 404 || r.Body != nil || !r.HeadSent {
		t.Errorf("%+v %v, sink %d %q", r, r.Failure, s.status, s.body.String())
	}
	s = &sink{fail: execution.Failf(execution.CodeClientGone, execution.OriginCaller, "gone")}
	c.Sink = s
	if r = d.ask(c); codeOf(r) != execution.CodeClientGone || s.ends != 0 || !r.HeadSent {
		t.Errorf("a caller that is gone: %+v %v", r, r.Failure)
	}
	if id, cause := cancelOf(t, n); id != r.CommandID || cause != pb.CancelCause_CANCEL_CAUSE_CLIENT_GONE {
		t.Errorf("cancel of %q for %v", id, cause)
	}
}

// HT-15: what no node may be asked is refused at the edge already; no node hears of it.
func TestCommandsRefusedAtTheEdge(t *testing.T) {
	d := newDesk(t, nil, "a")
	d.ready("a", func(a *asked) { t.Errorf("a node was asked %v", a.NodeCommandRequest); a.answer() })
	for what, c := range map[string]struct {
		change func(c *service.Command)
		code   execution.Code
	}{
		"a removed type":       {func(c *service.Command) { c.Type = 3 }, execution.CodeBadRequest},
		"no type":              {func(c *service.Command) { c.Type = 0 }, execution.CodeBadRequest},
		"an unknown type":      {func(c *service.Command) { c.Type = 77 }, execution.CodeBadRequest},
		"nobody":               {func(c *service.Command) { c.Type, c.NodeID, c.Adapter = service.CommandCapabilities, "", "" }, execution.CodeBadRequest},
		"no adapter":           {func(c *service.Command) { c.Adapter = "" }, execution.CodeBadRequest},
		"status with a path":   {func(c *service.Command) { c.Type = service.CommandTransportStatus }, execution.CodeBadRequest},
		"a GET with a body":    {func(c *service.Command) { c.Body = []byte("x") }, execution.CodeBadRequest},
		"a body too large":     {func(c *service.Command) { c.Method, c.Path, c.Body = "POST", "/api/show", make([]byte, 64<<10+1) }, execution.CodeBodyTooLarge},
		"a long session":       {func(c *service.Command) { c.SessionID = strings.Repeat("s", 257) }, execution.CodeBadRequest},
		"a session not UTF-8":  {func(c *service.Command) { c.SessionID = "\xff" }, execution.CodeBadRequest},
		"an unknown node":      {func(c *service.Command) { c.NodeID = "zz" }, execution.CodeNoNode},
		"an unknown adapter":   {func(c *service.Command) { c.Adapter = "zz" }, execution.CodeUnknownAdapter},
		"an adapter of nobody": {func(c *service.Command) { c.NodeID, c.Adapter = "", "zz" }, execution.CodeUnknownAdapter},
	} {
		cmd := tags("a")
		c.change(cmd)
		d.refused(what, d.ask(cmd), c.code)
	}
	for _, path := range []string{"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete",
		"/API/delete", "/api/delete?", "/api/\\delete", "/api/pull", "/api/tags?x=1", ""} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			c := tags("a")
			c.Method, c.Path = method, path
			d.refused(method+" "+path, d.ask(c), execution.CodeBadRequest)
		}
	}
}

// The states of a node: nothing is sent before its Ready (§2.B building: K) nor while it drains; an unresponsive one is
// asked, and usable again by its answer (§2.A).
func TestCommandsByState(t *testing.T) {
	d := newDesk(t, nil, "a", "b")
	var count atomic.Int64
	d.refused("not connected", d.ask(status("a")), execution.CodeNoNode)
	n := d.connect("a", func(a *asked) { count.Add(1); a.answer() })
	d.refused("not ready", d.ask(status("a")), execution.CodeNoNode)
	d.refused("not ready, by adapter", d.ask(tags("")), execution.CodeNoNode)
	d.Registry.Current("a").ReadyOverdue()
	d.refused("overdue", d.ask(status("a")), execution.CodeNoNode)
	n.AwaitReady(t)
	for range 3 {
		d.Registry.Current("a").DispatchTimeout()
	}
	d.refused("unresponsive, by adapter", d.ask(tags("")), execution.CodeNoNode)
	if s := d.Registry.Current("a").State(); s != node.StateUnresponsive || count.Load() != 0 {
		t.Fatalf("state %v, %d commands", s, count.Load())
	}
	if r := d.ask(status("a")); !r.OK() || d.Registry.Current("a").State() != node.StateReady {
		t.Errorf("unresponsive: %v, now %v", r.Failure, d.Registry.Current("a").State())
	}
	n.SendStatus(&pb.NodeStatus{Draining: true, Adapters: n.Adapters()})
	eventually(t, "it drains", func() bool { return d.Registry.Current("a").State() == node.StateDraining })
	d.refused("draining", d.ask(status("a")), execution.CodeNodeDraining)
	d.refused("draining, by adapter", d.ask(tags("")), execution.CodeNodeDraining)
	d.ready("b", (*asked).answer)
	if r := d.ask(tags("")); !r.OK() || r.NodeID != "b" {
		t.Errorf("another node has it: %+v %v", r, r.Failure)
	}
	if n := count.Load(); n != 1 {
		t.Errorf("%d commands were sent", n)
	}
	n.Close()
	eventually(t, "it is gone", func() bool { return d.Registry.Current("a") == nil })
	d.refused("gone", d.ask(status("a")), execution.CodeNoNode)
}

// Of several nodes with the adapter one is asked whose provider can be.
func TestCommandGoesWhereTheProviderIs(t *testing.T) {
	d := newDesk(t, nil, "a", "b", "c")
	old := d.connectAs("a", edgetest.Hello("a"), (*asked).answer) // doesn't know OLLAMA_API
	old.AwaitReady(t)
	down := d.connect("b", (*asked).answer)
	states := down.Adapters()
	states[0].Available = false
	down.SendReady(&pb.Ready{Projection: down.Response.GetConfig().GetProjection(), Adapters: states})
	edgetest.Await(t, down, patience.Limit, (*pb.EdgeControl).GetReadyAck)
	if r := d.ask(tags("")); r.NodeID != "b" || !r.OK() {
		t.Errorf("the only one that knows the command: %+v %v", r, r.Failure)
	}
	d.ready("c", (*asked).answer)
	if r := d.ask(tags("")); r.NodeID != "c" || !r.OK() {
		t.Errorf("with a provider that is up: %+v %v", r, r.Failure)
	}
	d.refused("by name, without the command", d.ask(tags("a")), execution.CodeBadRequest)
	if r := d.ask(&service.Command{NodeID: "a", Type: service.CommandCapabilities, SessionID: "s-1"}); !r.OK() {
		t.Errorf("capabilities of an older node: %v", r.Failure)
	}
}
