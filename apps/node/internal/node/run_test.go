package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/router"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

func counts(in, out int64) execution.Usage { return execution.Usage{Input: &in, Output: &out} }

// Every way in which an adapter can return becomes one terminal and one RunEnded with the same code. ST-17, ST-18,
// faults rows 23 and 24.
func TestRunOutcomes(t *testing.T) {
	event := func(emit execution.Emit, kind execution.EventKind, text string) {
		_ = emit(execution.Event{Kind: kind, Text: text})
	}
	delta := func(emit execution.Emit) { event(emit, execution.EventDelta, "x") }
	cut := execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "the stream ended without an end mark")
	refused := &execution.Failure{Code: execution.CodeUpstreamConnect, Origin: execution.OriginNode, Text: "connection refused", NothingSent: true}
	done := execution.Completion{FinishReason: "stop"}
	type result = execution.Completion
	for _, c := range []struct {
		name  string
		run   func(emit execution.Emit) (result, error)
		kinds string
		code  execution.Code
	}{
		{"whole", func(e execution.Emit) (result, error) { return nodetest.Say(e, "a", "b") }, "asddc", execution.CodeOK},
		{"without a start", func(e execution.Emit) (result, error) { delta(e); return done, nil }, "adc", execution.CodeOK},
		{"says nothing", func(execution.Emit) (result, error) { return done, nil }, "ac", execution.CodeOK},
		{"forgets how it ended (row 24)", func(e execution.Emit) (result, error) { delta(e); return result{}, nil }, "adc", execution.CodeOK},
		{"failure before the first event", func(execution.Emit) (result, error) { return result{}, refused }, "ax", execution.CodeUpstreamConnect},
		{"cut (ST-17, ST-18)", func(e execution.Emit) (result, error) { delta(e); delta(e); delta(e); return done, cut }, "adddx", execution.CodeUpstreamTruncated},
		{"wrapped failure", func(execution.Emit) (result, error) { return done, fmt.Errorf("read: %w", cut) }, "ax", execution.CodeUpstreamTruncated},
		{"foreign error", func(e execution.Emit) (result, error) { delta(e); return done, errors.New("S3CR3T") }, "adx", execution.CodeInternal},
		{"panic (row 23)", func(e execution.Emit) (result, error) { delta(e); panic("S3CR3T") }, "adx", execution.CodeAdapterPanic},
		{"two starts", func(e execution.Emit) (result, error) {
			event(e, execution.EventStart, "")
			event(e, execution.EventStart, "")
			return done, nil
		}, "asx", execution.CodeProtocol},
		{"start in the middle", func(e execution.Emit) (result, error) {
			delta(e)
			event(e, execution.EventStart, "")
			return done, nil
		}, "adx", execution.CodeProtocol},
		{"half a character (ST-03)", func(e execution.Emit) (result, error) {
			event(e, execution.EventDelta, "🌍"[:2])
			event(e, execution.EventDelta, "🌍"[2:])
			return done, nil
		}, "ax", execution.CodeAdapterDecode},
		{"impossible tool call", func(e execution.Emit) (result, error) {
			_ = e(execution.Event{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: -1}})
			return done, nil
		}, "ax", execution.CodeAdapterDecode},
		{"what says nothing isn't sent", func(e execution.Emit) (result, error) {
			for kind := execution.EventDelta; kind <= execution.EventUsage+1; kind++ {
				event(e, kind, "")
			}
			return done, nil
		}, "ac", execution.CodeOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := new(logged)
			r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
				return c.run(emit)
			}}, capacity(1), func(s *setup) { s.log = zerolog.New(log) })
			got := r.StartRun("r1").Collect()
			e := r.RunEnd("r1")
			if got.Kinds != c.kinds || execution.Code(got.Error.GetCode()) != c.code || execution.Code(e.GetCode()) != c.code || e.GetBackground() {
				t.Errorf("got %q %v, RunEnd %v", got.Kinds, got.Error, e)
			}
			if got.Error.GetNothingSent() != (c.code == execution.CodeUpstreamConnect) {
				t.Errorf("nothing_sent = %v", got.Error.GetNothingSent())
			}
			r.adapter.OnExecute = nil
			if got := r.StartRun("r2").Collect(); got.Kinds != "asdc" || got.Complete.GetFinishReason() != "stop" || got.Start.GetModel() != "m" {
				t.Errorf("the next run got %q %v", got.Kinds, got.Rejected)
			}
			r.RunEnd("r2")
			r.atRest()
			if strings.Contains(log.String(), "S3CR3T") || strings.Contains(got.Error.GetText(), "S3CR3T") {
				t.Error("what a panic or a foreign error said got out")
			}
		})
	}
}

// Every kind of event arrives as it was emitted; texts and arguments over 16 KiB come in pieces that are whole
// characters. ST-03.
func TestRunEvents(t *testing.T) {
	long := strings.Repeat("那个 🌍", 20_000) // characters of 1, 3 and 4 bytes: borders fall everywhere
	arguments := `{"text":"` + long + `"}`
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		for _, e := range []execution.Event{
			{Kind: execution.EventStart, Model: "real-name"},
			{Kind: execution.EventReasoning, Text: "x" + long},
			{Kind: execution.EventDelta, Text: long},
			{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 0, ID: "c0", Name: "f"}},
			{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 1, ID: "c1", Name: "g", Arguments: arguments}},
			{Kind: execution.EventToolCall, ToolCall: execution.ToolCallDelta{Index: 0, Arguments: "{}"}},
			{Kind: execution.EventUsage, Usage: counts(3, 4)},
		} {
			if err := emit(e); err != nil {
				return execution.Completion{}, err
			}
		}
		return execution.Completion{FinishReason: "tool_calls", Usage: counts(3, 5)}, nil
	}})
	got := r.StartRun("r1", func(q *pb.RunRequest) { q.SessionId = "s-1" }).Collect()
	e := r.RunEnd("r1")
	if got.Err != nil || got.Accepted.GetSessionId() != "s-1" || got.Start.GetModel() != "real-name" {
		t.Errorf("%v, accepted %v, start %v", got.Err, got.Accepted, got.Start)
	}
	if got.Reasoning.String() != "x"+long || got.Text.String() != long {
		t.Errorf("%d and %d bytes of text, want %d", got.Reasoning.Len(), got.Text.Len(), len(long))
	}
	if got.Longest > 16<<10 || strings.ContainsRune(got.Text.String(), utf8.RuneError) {
		t.Errorf("a piece of %d bytes, or a broken character", got.Longest)
	}
	want := map[uint32]*pb.ToolCall{0: {Index: 0, Id: "c0", Name: "f", ArgumentsFragment: "{}"}, 1: {Index: 1, Id: "c1", Name: "g", ArgumentsFragment: arguments}}
	for i, w := range want {
		if !proto.Equal(got.Calls[i], w) {
			t.Errorf("tool call %d differs: id %q name %q, %d bytes", i, got.Calls[i].GetId(), got.Calls[i].GetName(), len(got.Calls[i].GetArgumentsFragment()))
		}
	}
	if got.Usage.GetOutput() != 4 || got.Complete.GetUsage().GetOutput() != 5 || got.Complete.GetUsage().Cached != nil ||
		got.Complete.GetFinishReason() != "tool_calls" || e.GetUsage().GetOutput() != 5 {
		t.Errorf("usage %v, complete %v, RunEnd %v", got.Usage, got.Complete, e)
	}
	if want := int64(2*len(long) + 1 + len(arguments) + 2); e.GetBytesOut() != want || e.GetFrames() < want>>14 {
		t.Errorf("RunEnd = %v, want %d bytes", e, want)
	}
	r.atRest()
}

// What the caller asked for reaches the adapter, and the timers are the route's, else the node's.
func TestRunRequestReachesTheAdapter(t *testing.T) {
	seen := make(chan *execution.Request, 2)
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
		seen <- req
		return nodetest.Say(emit, "ok")
	}})
	content, err := proto.Marshal(&pb.RunInput{
		Messages: []*pb.Message{
			{Role: "user", Parts: []*pb.Part{{Part: &pb.Part_Text{Text: "look"}}, {Part: &pb.Part_Image{Image: &pb.Image{MediaType: "image/png", Data: []byte{1, 2}}}}}},
			{Role: "assistant", ToolCalls: []*pb.ToolCall{{Id: "c1", Name: "f", ArgumentsFragment: "{}"}}},
			{Role: "tool", ToolCallId: "c1", Name: "f", Parts: []*pb.Part{{Part: &pb.Part_Text{Text: "42"}}}},
		},
		Tools:          []*pb.Tool{{Name: "f", Description: "d", ParametersJson: `{"type":"object"}`}, {Name: "g"}},
		ToolChoiceJson: `{"mode":"tool","name":"f"}`,
		OptionsJson:    `{"max_tokens":5,"stop":["a"]}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	open := r.RunOpen("r1", len(content))
	run := open.GetRun()
	run.SessionId, run.FirstByteMs = "s-1", 1500
	if got := r.OpenRun(open).Body(content).End().Collect(); got.Complete == nil {
		t.Fatalf("got %q %v %v", got.Kinds, got.Error, got.Err)
	}
	most := int64(5)
	want := &execution.Request{
		RunID: "r1", SessionID: "s-1", Target: "m",
		Messages: []execution.Message{
			{Role: "user", Parts: []execution.Part{{Text: "look"}, {Image: &execution.Image{MediaType: "image/png", Data: []byte{1, 2}}}}},
			{Role: "assistant", ToolCalls: []execution.ToolCall{{ID: "c1", Name: "f", Arguments: "{}"}}},
			{Role: "tool", ToolCallID: "c1", Name: "f", Parts: []execution.Part{{Text: "42"}}},
		},
		Tools:      []execution.Tool{{Name: "f", Description: "d", Parameters: []byte(`{"type":"object"}`)}, {Name: "g"}},
		ToolChoice: execution.ToolChoice{Mode: execution.ToolNamed, Name: "f"},
		Options:    execution.Options{MaxTokens: &most, Stop: []string{"a"}},
		Timers:     execution.Timers{FirstByte: 1500 * time.Millisecond, Idle: 5 * time.Minute},
	}
	if diff := cmp.Diff(want, nodetest.Receive(t, "the request", seen)); diff != "" {
		t.Error(diff)
	}
	if e := r.RunEnd("r1"); e.GetBytesIn() != int64(len(content)) {
		t.Errorf("RunEnd = %v", e)
	}
	r.atRest()
}

// A run's content may be large; it is read as a whole before the adapter is called.
func TestRunOfLargeContent(t *testing.T) {
	const size = 3 << 20
	got := make(chan int, 1)
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
		got <- len(req.Messages[0].Parts[0].Text)
		return nodetest.Say(emit)
	}})
	content, _ := proto.Marshal(&pb.RunInput{Messages: []*pb.Message{{Role: "user", Parts: []*pb.Part{{Part: &pb.Part_Text{Text: strings.Repeat("x", size)}}}}}})
	run := r.OpenRun(r.RunOpen("r1", len(content)))
	run.Body(content[:size/2])
	run.Accepted()
	if n := r.adapter.Calls.Load(); n != 0 {
		t.Error("called before the content was whole")
	}
	if out := run.Body(content[size/2:]).End().Collect(); out.Complete == nil || nodetest.Receive(t, "a call", got) != size {
		t.Errorf("got %q %v", out.Kinds, out.Err)
	}
	r.RunEnd("r1")
	r.atRest()
}

// §2.D "end with fewer or more bytes than declared", and content that makes no sense: one terminal error(bad_request)
// that says that nothing was sent; the adapter isn't called.
func TestRunContentIsRefused(t *testing.T) {
	marshal := func(change func(*pb.RunInput)) []byte {
		in := nodetest.Input()
		change(in)
		b, err := proto.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := marshal(func(*pb.RunInput) {})
	type send = func(*nodetest.Run)
	whole := func(b []byte) send { return func(run *nodetest.Run) { run.Body(b).End() } }
	for name, c := range map[string]struct {
		content []byte // declared
		send    send
		want    execution.Code
		text    string
	}{
		"not protobuf":       {[]byte("{}"), whole([]byte("{}")), execution.CodeBadRequest, "decoded"},
		"empty":              {nil, whole(nil), execution.CodeBadRequest, "messages"},
		"no such role":       {marshal(func(in *pb.RunInput) { in.Messages[0].Role = "king" }), nil, execution.CodeBadRequest, "messages[0]: role"},
		"part of a new kind": {marshal(func(in *pb.RunInput) { in.Messages[0].Parts[0].Part = nil }), nil, execution.CodeBadRequest, "messages[0].parts[0]"},
		"unknown option":     {marshal(func(in *pb.RunInput) { in.OptionsJson = `{"min_p":1}` }), nil, execution.CodeBadRequest, `"min_p"`},
		"bad options":        {marshal(func(in *pb.RunInput) { in.OptionsJson = `[]` }), nil, execution.CodeBadRequest, "options"},
		"bad tool_choice":    {marshal(func(in *pb.RunInput) { in.ToolChoiceJson = `{"x":1}` }), nil, execution.CodeBadRequest, "tool_choice"},
		"bad parameters":     {marshal(func(in *pb.RunInput) { in.Tools = []*pb.Tool{{Name: "f", ParametersJson: "1"}} }), nil, execution.CodeBadRequest, "tools[0]"},
		"longer":             {good[:len(good)-1], whole(good), execution.CodeBadRequest, "longer"},
		"shorter":            {good, func(run *nodetest.Run) { run.Body(good[:3]).EndOf(3) }, execution.CodeBadRequest, "ended after 3"},
		"end says more":      {good, func(run *nodetest.Run) { run.Body(good).EndOf(int64(len(good)) + 1) }, execution.CodeBadRequest, "ended after"},
		"a gap": {good, func(run *nodetest.Run) {
			_ = run.AppendBody(2, good)
			_ = run.Flush()
		}, execution.CodeProtocol, "input number 2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, &nodetest.Adapter{})
			if c.send == nil {
				c.send = whole(c.content)
			}
			run := r.OpenRun(r.RunOpen("r1", len(c.content)))
			c.send(run)
			got := run.Collect()
			if got.Kinds != "ax" || execution.Code(got.Error.GetCode()) != c.want || !got.Error.GetNothingSent() || !strings.Contains(got.Error.GetText(), c.text) {
				t.Errorf("got %q %v %v", got.Kinds, got.Error, got.Err)
			}
			if e := r.RunEnd("r1"); execution.Code(e.GetCode()) != c.want {
				t.Errorf("RunEnd = %v", e)
			}
			if r.adapter.Calls.Load() != 0 {
				t.Error("the adapter was called")
			}
			r.atRest()
		})
	}
}

// §2.D opening: what makes no sense, or isn't to be had, is rejected and nothing starts.
func TestRunOpenIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pb.RunRequest)
		want   execution.Code
	}{
		"no run_id":        {func(q *pb.RunRequest) { q.RunId = "" }, execution.CodeBadRequest},
		"no target":        {func(q *pb.RunRequest) { q.Target = "" }, execution.CodeBadRequest},
		"negative size":    {func(q *pb.RunRequest) { q.InputBytes = -1 }, execution.CodeBadRequest},
		"too large":        {func(q *pb.RunRequest) { q.InputBytes = 1 << 40 }, execution.CodeBodyTooLarge},
		"negative limit":   {func(q *pb.RunRequest) { q.IdleMs = -1 }, execution.CodeBadRequest},
		"a lease":          {func(q *pb.RunRequest) { q.Lease = []byte("x") }, execution.CodeCredentialRefused},
		"unknown adapter":  {func(q *pb.RunRequest) { q.Adapter = "b" }, execution.CodeUnknownAdapter},
		"stale revision":   {func(q *pb.RunRequest) { q.AdapterRevision = 9 }, execution.CodeStaleProjection},
		"unknown features": {nodetest.Background, execution.CodeBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, &nodetest.Adapter{}, func(s *setup) { s.features = nil })
			r.rejectsRun(r.StartRun("r1", c.change), c.want)
			r.atRest()
		})
	}
	t.Run("no executor", func(t *testing.T) {
		r := newRig(t, &nodetest.Adapter{}, func(s *setup) {
			s.build = func(router.Spec) (execution.Provider, error) {
				return struct{ execution.Provider }{&nodetest.Adapter{}}, nil
			}
		})
		r.rejectsRun(r.StartRun("r1"), execution.CodeBadRequest)
		r.atRest()
	})
	t.Run("busy, known, draining", func(t *testing.T) {
		r := newRig(t, &nodetest.Adapter{OnExecute: nodetest.HangRun}, capacity(1))
		r.StartRun("r1").Accepted()
		r.inside(1)
		r.rejectsRun(r.StartRun("r2"), execution.CodeAdapterBusy)
		r.rejectsRun(r.StartRun("r1"), execution.CodeDuplicateRun)
		r.rejects(r.Start("r1"), execution.CodeDuplicateRun) // a tunnel is an execution, too
		r.x.Drain()
		r.rejectsRun(r.StartRun("r2"), execution.CodeNodeDraining)
	})
}

// rejectsRun checks that a run is answered with one rejection.
func (r *rig) rejectsRun(run *nodetest.Run, code execution.Code) {
	r.t.Helper()
	got := run.Collect()
	if got.Kinds != "r" || execution.Code(got.Rejected.GetFailure().GetCode()) != code || !got.Rejected.GetNeverStarted() {
		r.t.Errorf("got %q %v (%v), want a rejection with %s", got.Kinds, got.Rejected, got.Err, code)
	}
}

// Faults row 25: what is emitted after the return is dropped and counted.
func TestRunEventsAfterReturnAreDropped(t *testing.T) {
	var kept execution.Emit
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		kept = emit
		return nodetest.Say(emit, "ok")
	}})
	got := r.StartRun("r1").Collect()
	r.RunEnd("r1")
	if kept(execution.Event{Kind: execution.EventDelta, Text: "x"}) == nil || r.seen.lateOf("emit") != 1 || got.Kinds != "asdc" {
		t.Errorf("got %q, %d counted", got.Kinds, r.seen.lateOf("emit"))
	}
	r.atRest()
}

// §2.D write blocked: a caller that reads nothing stops the provider's reader; a cancel wakes it, frees the place at
// once, and the terminal follows what was sent.
func TestRunOfASlowCaller(t *testing.T) {
	full := make(chan error, 1)
	text := strings.Repeat("x", 8<<10)
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		for {
			if err := emit(execution.Event{Kind: execution.EventDelta, Text: text}); err != nil {
				full <- err
				return execution.Completion{}, err
			}
		}
	}}, timers(func(t *node.Timers) { t.AdapterStop = 2 * nodetest.Limit })) // nothing waits for this
	run := r.StartRun("r1")
	nodetest.Eventually(t, "the adapter waits for the window", func() bool { return r.mux.Status().Pending == 0 && r.mux.Status().BytesOut > 1<<20 })
	if sent := r.mux.Status().BytesOut; sent > 2<<20 {
		t.Errorf("%d bytes were sent to a caller that reads nothing", sent)
	}
	r.Link.SendCancel("r1", execution.CauseClientSlow)
	if e := r.RunEnd("r1"); e.GetCode() != pb.FailureCode_FAILURE_CODE_CLIENT_SLOW || e.GetAbandoned() || r.inFlight() != 0 {
		t.Errorf("RunEnd %v, %d held", e, r.inFlight())
	}
	nodetest.Receive(t, "the adapter is woken", full)
	got := run.Collect()
	if got.Cancelled.GetCause() != pb.CancelCause_CANCEL_CAUSE_CLIENT_SLOW || got.Err != nil || got.Text.Len() < 1000<<10 {
		t.Errorf("got %d bytes, %v, %v", got.Text.Len(), got.Cancelled, got.Err)
	}
	r.atRest()
}

// A token leaves when it was emitted: nothing waits for the next one.
func TestRunTokensGoAtOnce(t *testing.T) {
	next := make(chan string)
	r := newRig(t, &nodetest.Adapter{OnExecute: func(_ context.Context, _ *execution.Request, emit execution.Emit) (execution.Completion, error) {
		for text := range next {
			if err := emit(execution.Event{Kind: execution.EventDelta, Text: text}); err != nil {
				return execution.Completion{}, err
			}
		}
		return execution.Completion{FinishReason: "stop"}, nil
	}})
	run := r.StartRun("r1")
	run.Accepted()
	for i := range 20 {
		next <- fmt.Sprint(i)
		if e, err := run.Next(); err != nil || e.GetDelta() != fmt.Sprint(i) {
			t.Fatalf("token %d: %v, %v", i, e, err)
		}
	}
	close(next)
	if got := run.Collect(); got.Complete == nil {
		t.Errorf("got %q %v", got.Kinds, got.Err)
	}
	r.RunEnd("r1")
	r.atRest()
}

// A link that is lost ends foreground runs and tells nobody on it.
func TestLinkLostEndsForegroundRuns(t *testing.T) {
	called := make(chan struct{}, 1)
	r := newRig(t, &nodetest.Adapter{OnExecute: func(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
		called <- struct{}{}
		return nodetest.HangRun(ctx, req, emit)
	}})
	r.StartRun("r1")
	nodetest.Receive(t, "the adapter is called", called)
	r.Link.Close(transport.ReasonLost)
	r.atRest()
	nodetest.Eventually(t, "it is told", func() bool { return len(r.seen.all()) == 1 })
	if e := r.seen.all()[0]; e.Status != execution.StatusCancelled || e.Code != execution.CodeNodeLost {
		t.Errorf("ended %+v", e)
	}
}
