package httpapi

import (
	"encoding/json"
	"net/http"

	"iop/apps/edge/internal/dialect"
	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
)

// usageView shows token counts; null is unknown.
type usageView struct {
	Input     *int64 `json:"input"`
	Output    *int64 `json:"output"`
	Cached    *int64 `json:"cached"`
	Reasoning *int64 `json:"reasoning"`
}

func viewUsage(u execution.Usage) *usageView {
	if !u.Known() {
		return nil
	}
	return &usageView{Input: u.Input, Output: u.Output, Cached: u.Cached, Reasoning: u.Reasoning}
}

// failureView shows why a run failed.
type failureView struct {
	Code           string `json:"code"`
	Message        string `json:"message"`
	Origin         string `json:"origin"`
	UpstreamStatus int    `json:"upstream_status,omitempty"`
}

func viewFailure(f *execution.Failure) *failureView {
	return &failureView{Code: f.Code.String(), Message: f.Text, Origin: f.Origin.String(), UpstreamStatus: f.UpstreamStatus}
}

// eventStream writes a run's events as server-sent events (WHATWG HTML, 9.2): `event:` is the event's name, `data:` one
// JSON object. It implements service.EventSink.
type eventStream struct {
	out   *sink
	spec  *service.RunSpec
	begun bool
	last  uint64
	line  []byte
}

// Placed implements service.EventSink.
func (s *eventStream) Placed(at service.Placement) {
	if !s.begun { // afterwards the head is out; a run isn't placed again once it has begun
		s.out.Placed(at)
	}
}

// eventData is the data of one event; which fields it has follows from its name.
type eventData struct {
	RunID     string `json:"run_id"`
	Seq       uint64 `json:"seq"`
	SessionID string `json:"session_id,omitempty"`

	Model        string       `json:"model,omitempty"`     // start
	Text         string       `json:"text,omitempty"`      // delta, reasoning_delta
	Index        *int         `json:"index,omitempty"`     // tool_call
	ID           string       `json:"id,omitempty"`        // tool_call
	Name         string       `json:"name,omitempty"`      // tool_call
	Arguments    string       `json:"arguments,omitempty"` // tool_call: a fragment
	Usage        *usageView   `json:"usage,omitempty"`     // usage, complete
	FinishReason string       `json:"finish_reason,omitempty"`
	Error        *failureView `json:"error,omitempty"`
	Cause        string       `json:"cause,omitempty"` // cancelled
}

// Event implements service.EventSink.
func (s *eventStream) Event(seq uint64, e execution.Event) error {
	data := eventData{RunID: s.spec.RunID, Seq: seq, SessionID: s.spec.SessionID}
	name := ""
	switch e.Kind {
	case execution.EventStart:
		name, data.Model = "start", e.Model
	case execution.EventDelta:
		name, data.Text = "delta", e.Text
	case execution.EventReasoning:
		name, data.Text = "reasoning_delta", e.Text
	case execution.EventToolCall:
		t := e.ToolCall
		name, data.Index, data.ID, data.Name, data.Arguments = "tool_call", &t.Index, t.ID, t.Name, t.Arguments
	case execution.EventUsage:
		name, data.Usage = "usage", viewUsage(e.Usage)
	}
	return s.write(name, data)
}

// terminal writes the event that ends the stream and is never missing from a whole one.
func (s *eventStream) terminal(o *service.Outcome) error {
	data := eventData{RunID: o.RunID, Seq: s.last + 1, SessionID: s.spec.SessionID}
	name := "complete"
	switch {
	case o.Failure == nil:
		data.FinishReason, data.Usage = o.FinishReason, viewUsage(o.Usage)
	case o.Failure.Code == execution.CodeCancelled || o.Failure.Code == execution.CodeClientGone || o.Failure.Code == execution.CodeClientSlow:
		name, data.Cause = "cancelled", o.Failure.Code.String()
	default:
		name, data.Error = "error", viewFailure(o.Failure)
	}
	if err := s.write(name, data); err != nil {
		return err
	}
	return s.out.End()
}

func (s *eventStream) write(name string, data eventData) error {
	if !s.begun {
		s.begun = true
		s.out.w.Header()["X-Iop-Run-Id"] = []string{data.RunID}
		err := s.out.Head(http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}, "Cache-Control": {"no-store"},
			"X-Accel-Buffering": {"no"}})
		if err != nil {
			return err
		}
	}
	text, err := json.Marshal(data)
	if err != nil {
		return execution.Failf(execution.CodeInternal, execution.OriginEdge, "an event couldn't be encoded")
	}
	s.last = data.Seq
	s.line = append(append(append(s.line[:0], "event: "...), name...), "\ndata: "...)
	s.line = append(append(s.line, text...), "\n\n"...)
	return s.out.Body(s.line, true)
}

// wholeRun collects a run's events into one object. It implements service.EventSink.
type wholeRun struct {
	dialect.Whole
	out  *sink
	body *body // of the request: what is collected counts against its budget
}

type wholeCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Placed implements service.EventSink.
func (r *wholeRun) Placed(at service.Placement) { r.out.Placed(at) }

// Event implements service.EventSink.
func (r *wholeRun) Event(_ uint64, e execution.Event) error {
	if f := r.body.collect(e); f != nil {
		return f
	}
	return r.Whole.Event(e)
}

// runResult is the answer to a run that doesn't stream.
type runResult struct {
	RunID        string      `json:"run_id"`
	SessionID    string      `json:"session_id,omitempty"`
	Node         string      `json:"node"`
	Adapter      string      `json:"adapter"`
	Target       string      `json:"target"`
	Model        string      `json:"model,omitempty"` // as the provider calls it
	Text         string      `json:"text"`
	Reasoning    string      `json:"reasoning,omitempty"`
	ToolCalls    []wholeCall `json:"tool_calls,omitempty"`
	FinishReason string      `json:"finish_reason"`
	Usage        *usageView  `json:"usage"` // null = unknown
}

func (r *wholeRun) result(o *service.Outcome) runResult {
	var calls []wholeCall
	for _, c := range r.Calls {
		calls = append(calls, wholeCall(c))
	}
	return runResult{RunID: o.RunID, SessionID: o.SessionID, Node: o.NodeID, Adapter: o.Adapter, Target: o.Target, Model: r.Model,
		Text: r.Text.String(), Reasoning: r.Reasoning.String(), ToolCalls: calls, FinishReason: o.FinishReason, Usage: viewUsage(o.Usage)}
}
