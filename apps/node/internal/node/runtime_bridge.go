package node

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"net/http"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"iop/apps/node/internal/store"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// This file is the only place where the node turns wire messages into execution's values and back, and where an
// adapter's return, its panic or a cancel becomes the one outcome of an execution.

// outcome is how an execution ended: a status, and the failure unless it is complete.
type outcome struct {
	status  execution.Status
	failure *execution.Failure
	cause   execution.CancelCause // why it was cancelled, 0 = it wasn't
}

func (o outcome) code() execution.Code {
	if o.failure == nil {
		return execution.CodeOK
	}
	return o.failure.Code
}

// nothingSent is the same outcome of an execution whose adapter wasn't even called.
func (o outcome) nothingSent() outcome {
	f := *o.failure
	f.NothingSent = true
	o.failure = &f
	return o
}

func failed(f *execution.Failure) outcome { return outcome{status: execution.StatusError, failure: f} }

func cancelled(cause execution.CancelCause) outcome {
	f := &execution.Failure{Code: cause.Code(), Origin: causeOrigin(cause), Text: cause.Error()}
	return outcome{execution.StatusCancelled, f, cause}
}

// outcomeOf is the one table from what an adapter returned (err), what the reply saw, and why the context ended, to the
// outcome. A whole answer stands whatever came after it; a cancel stands over whatever the adapter made of it.
func outcomeOf(ctx context.Context, err error, seen answer) outcome {
	var own *execution.Failure
	switch {
	case errors.As(seen.err, &own):
		return failed(own) // the reply refused what the adapter gave it
	case err == nil && seen.err == nil && seen.answered:
		return outcome{status: execution.StatusComplete}
	}
	if cause := context.Cause(ctx); cause != nil {
		return outcomeOfCause(cause)
	}
	switch {
	case errors.Is(seen.err, transport.ErrLinkDown):
		return cancelled(execution.CauseLinkLost)
	case errors.Is(seen.err, transport.ErrCancelled), errors.Is(seen.err, transport.ErrInterrupted):
		return cancelled(execution.CauseClientGone)
	case seen.err != nil:
		return failed(execution.AsFailure(seen.err, execution.OriginNode))
	case err == nil:
		return failed(execution.Failf(execution.CodeInternal, execution.OriginNode, "the adapter returned without an answer"))
	}
	var cause execution.CancelCause
	if errors.As(err, &cause) {
		return cancelled(cause)
	}
	return failed(execution.AsFailure(err, execution.OriginNode))
}

// outcomeOfCause is the outcome of an execution whose context ended with cause: a cancel, or a fault of its input.
func outcomeOfCause(cause error) outcome {
	var c execution.CancelCause
	if errors.As(cause, &c) {
		return cancelled(c)
	}
	return failed(execution.AsFailure(cause, execution.OriginNode))
}

func causeOrigin(c execution.CancelCause) execution.Origin {
	switch c {
	case execution.CauseClientGone, execution.CauseClientSlow, execution.CauseAPI:
		return execution.OriginCaller
	case execution.CauseDeadline, execution.CauseEdgeDraining, execution.CauseCredentialRevoked:
		return execution.OriginEdge
	}
	return execution.OriginNode
}

// causeFromWire reads why the edge cancels. What this version doesn't know is a cancel all the same.
func causeFromWire(c pb.CancelCause) execution.CancelCause {
	if c < pb.CancelCause_CANCEL_CAUSE_CLIENT_GONE || c > pb.CancelCause_CANCEL_CAUSE_CREDENTIAL_REVOKED {
		return execution.CauseAPI
	}
	return execution.CancelCause(c)
}

func failureToWire(f *execution.Failure) *pb.Failure {
	return &pb.Failure{
		Code:           pb.FailureCode(f.Code),
		Origin:         pb.Origin(f.Origin),
		Text:           cut(f.Text, execution.MaxFailureText),
		UpstreamStatus: int32(f.UpstreamStatus),
		RetryAfterMs:   f.RetryAfter.Milliseconds(),
		NothingSent:    f.NothingSent,
		LeaseReason:    pb.LeaseReason(f.Lease.Reason),
		LeaseField:     uint32(f.Lease.Field),
	}
}

// cut shortens s to at most n bytes of valid UTF-8; protobuf refuses to send anything else.
func cut(s string, n int) string {
	if len(s) <= n && utf8.ValidString(s) {
		return s
	}
	out := make([]byte, 0, min(len(s), n))
	for _, r := range s {
		if len(out)+utf8.RuneLen(r) > n {
			break
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}

func rejection(f *execution.Failure) *pb.Rejected {
	return &pb.Rejected{Failure: failureToWire(f), NeverStarted: true}
}

func usageToWire(u execution.Usage) *pb.Usage {
	if !u.Known() {
		return nil
	}
	return &pb.Usage{Input: u.Input, Output: u.Output, Cached: u.Cached, Reasoning: u.Reasoning}
}

func headToWire(status int, h http.Header) *pb.TunnelHead {
	head := &pb.TunnelHead{Status: int32(status), Headers: make([]*pb.Header, 0, len(h))}
	for name, values := range h {
		for _, v := range values {
			head.Headers = append(head.Headers, &pb.Header{Name: cut(name, len(name)), Value: []byte(v)})
		}
	}
	return head
}

// tunnelOrder reads what a tunnel's open says of its execution.
func tunnelOrder(attempt uint32, req *pb.ProviderTunnelRequest) order {
	return order{
		kind: execution.KindTunnel, runID: req.GetRunId(), attempt: attempt, adapter: req.GetAdapter(),
		revision: req.GetAdapterRevision(), target: req.GetTarget(), sessionID: req.GetSessionId(), route: req.GetRoute(),
		principal: req.GetPrincipalRef(), timeLimit: milliseconds(req.GetDeadlineMs()), length: req.GetContentLength(),
	}
}

// runOrder reads what a run's open says of its execution.
func runOrder(attempt uint32, req *pb.RunRequest) order {
	return order{
		kind: execution.KindRun, runID: req.GetRunId(), attempt: attempt, adapter: req.GetAdapter(),
		revision: req.GetAdapterRevision(), target: req.GetTarget(), sessionID: req.GetSessionId(), route: req.GetRoute(),
		principal: req.GetPrincipalRef(), background: req.GetBackground(), timeLimit: milliseconds(req.GetDeadlineMs()),
		length: req.GetInputBytes(),
	}
}

// tunnelFromWire makes the request that the adapter gets.
func tunnelFromWire(t *pb.ProviderTunnelRequest, body *feed, defaults execution.Timers) *execution.TunnelRequest {
	req := &execution.TunnelRequest{
		Method:        t.GetMethod(),
		Path:          t.GetPath(),
		Query:         t.GetQuery(),
		Header:        make(http.Header, len(t.GetHeaders())),
		ContentLength: t.GetContentLength(),
		Target:        t.GetTarget(),
		Timers:        timersFromWire(t.GetFirstByteMs(), t.GetIdleMs(), defaults),
	}
	for _, h := range t.GetHeaders() {
		name := http.CanonicalHeaderKey(h.GetName())
		req.Header[name] = append(req.Header[name], string(h.GetValue()))
	}
	if req.ContentLength != 0 {
		req.Body = body
	}
	return req
}

// timersFromWire returns the timers of an execution: what the route doesn't set is the node's own.
func timersFromWire(firstByteMs, idleMs int64, defaults execution.Timers) execution.Timers {
	if firstByteMs > 0 {
		defaults.FirstByte = milliseconds(firstByteMs)
	}
	if idleMs > 0 {
		defaults.Idle = milliseconds(idleMs)
	}
	return defaults
}

// maxMilliseconds is the longest time that a peer can name; it is beyond every real one and far from overflow.
const maxMilliseconds = int64(365 * 24 * time.Hour / time.Millisecond)

func milliseconds(ms int64) time.Duration {
	return time.Duration(min(ms, maxMilliseconds)) * time.Millisecond
}

// endToWire says that an execution is over, and so its lease is.
func endToWire(t *task, o outcome, seen answer, ended time.Time) *pb.RunEnd {
	end := &pb.RunEnd{
		RunId:      t.runID,
		Attempt:    t.attempt,
		Status:     pb.RunStatus(o.status),
		Code:       pb.FailureCode(o.code()),
		Usage:      usageToWire(seen.usage),
		BytesIn:    t.body.received(),
		BytesOut:   seen.bytes,
		Frames:     seen.frames,
		Abandoned:  o.status == execution.StatusAbandoned,
		Background: t.background,
		StartedMs:  t.started.UnixMilli(),
		EndedMs:    ended.UnixMilli(),
	}
	t.key.report(end)
	return end
}

// The terminals, and accepted, which begins every answer. Nothing else in the node makes them.

func tunnelAccepted(sessionID string) frame {
	return frame{execution.StepAccepted, &pb.ProviderTunnelFrame{
		Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: &pb.Accepted{SessionId: sessionID}}}}
}

func runAccepted(sessionID string) frame {
	return frame{execution.StepAccepted, &pb.RunEvent{
		Event: &pb.RunEvent_Accepted{Accepted: &pb.Accepted{SessionId: sessionID}}}}
}

// tunnelTerminal ends a tunnel: usage if it is known, then end, or error.
func tunnelTerminal(o outcome, seen answer) []frame {
	var out []frame
	if seen.answered && seen.usage.Known() {
		out = append(out, frame{execution.StepUsage, &pb.ProviderTunnelFrame{
			Frame: &pb.ProviderTunnelFrame_Usage{Usage: usageToWire(seen.usage)}}})
	}
	if o.failure != nil {
		return append(out, frame{execution.StepError, &pb.ProviderTunnelFrame{
			Frame: &pb.ProviderTunnelFrame_Error{Error: failureToWire(o.failure)}}})
	}
	return append(out, frame{execution.StepEnd, &pb.ProviderTunnelFrame{
		Frame: &pb.ProviderTunnelFrame_End{End: &pb.TunnelEnd{Bytes: seen.bytes}}}})
}

// runTerminal ends a run: complete, cancelled, or error.
func runTerminal(o outcome, seen answer) []frame {
	switch {
	case o.cause != 0:
		return []frame{{execution.StepCancelled, &pb.RunEvent{
			Event: &pb.RunEvent_Cancelled{Cancelled: &pb.RunCancelled{Cause: pb.CancelCause(o.cause)}}}}}
	case o.failure != nil:
		return []frame{{execution.StepError, &pb.RunEvent{
			Event: &pb.RunEvent_Error{Error: failureToWire(o.failure)}}}}
	}
	return []frame{{execution.StepComplete, &pb.RunEvent{Event: &pb.RunEvent_Complete{Complete: &pb.RunComplete{
		FinishReason: cut(seen.completion, maxFinishReason), Usage: usageToWire(seen.usage)}}}}}
}

// What an event may say beside its text, which is split.
const (
	maxFinishReason = 128
	maxEventModel   = 512
	maxToolWord     = 1 << 10 // id and name of a tool call, each
)

// checkEvent refuses what can't be passed on: an adapter that lets it through hasn't understood its provider.
func checkEvent(e execution.Event) *execution.Failure {
	bad := func(what string) *execution.Failure {
		return execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider, "the provider's answer holds %s", what)
	}
	call := &e.ToolCall
	switch {
	case !utf8.ValidString(e.Text):
		return bad("text that isn't UTF-8")
	case e.Kind != execution.EventToolCall:
		return nil
	case call.Index < 0 || call.Index > math.MaxInt32:
		return bad("a tool call of an impossible index")
	case len(call.ID) > maxToolWord || len(call.Name) > maxToolWord:
		return bad("a tool call whose id or name is too long")
	case !utf8.ValidString(call.ID) || !utf8.ValidString(call.Name) || !utf8.ValidString(call.Arguments):
		return bad("a tool call that isn't UTF-8")
	}
	return nil
}

// eventToWire writes one event that checkEvent let through, in as many messages as its text needs. What says nothing
// is no message.
func eventToWire(e execution.Event) iter.Seq[frame] {
	return func(yield func(frame) bool) {
		switch e.Kind {
		case execution.EventStart:
			yield(frame{execution.StepStart, &pb.RunEvent{
				Event: &pb.RunEvent_Start{Start: &pb.RunStart{Model: cut(e.Model, maxEventModel)}}}})
		case execution.EventDelta:
			for piece := range pieces(e.Text) {
				if !yield(frame{execution.StepDelta, &pb.RunEvent{Event: &pb.RunEvent_Delta{Delta: piece}}}) {
					return
				}
			}
		case execution.EventReasoning:
			for piece := range pieces(e.Text) {
				if !yield(frame{execution.StepDelta, &pb.RunEvent{Event: &pb.RunEvent_ReasoningDelta{ReasoningDelta: piece}}}) {
					return
				}
			}
		case execution.EventToolCall:
			toolCallToWire(e.ToolCall, yield)
		case execution.EventUsage:
			if e.Usage.Known() {
				yield(frame{execution.StepUsage, &pb.RunEvent{Event: &pb.RunEvent_Usage{Usage: usageToWire(e.Usage)}}})
			}
		}
	}
}

// toolCallToWire writes a piece of a tool call. Id and name go with its first message, which may have no arguments.
func toolCallToWire(c execution.ToolCallDelta, yield func(frame) bool) {
	first := &pb.ToolCall{Index: uint32(c.Index), Id: c.ID, Name: c.Name}
	message := first
	send := func() bool {
		return yield(frame{execution.StepDelta, &pb.RunEvent{Event: &pb.RunEvent_ToolCall{ToolCall: message}}})
	}
	for piece := range pieces(c.Arguments) {
		message.ArgumentsFragment = piece
		if !send() {
			return
		}
		message = &pb.ToolCall{Index: first.Index}
	}
	if message == first && (c.ID != "" || c.Name != "") {
		send()
	}
}

// pieces cuts a text into what fits into one message, on the borders of characters.
func pieces(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(text) > transport.MaxBody {
			n := transport.MaxBody
			for !utf8.RuneStart(text[n]) {
				n--
			}
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
		if text != "" {
			yield(text)
		}
	}
}

// runFromWire decodes a run's content and makes the request that the adapter gets. What is wrong with it is a
// bad_request that names the place.
func runFromWire(open *pb.RunRequest, content []byte, defaults execution.Timers) (*execution.Request, error) {
	var in pb.RunInput
	if proto.Unmarshal(content, &in) != nil {
		return nil, badOpen("the run's content can't be decoded")
	}
	req := &execution.Request{
		RunID: open.GetRunId(), SessionID: open.GetSessionId(), Target: open.GetTarget(),
		Messages: make([]execution.Message, 0, len(in.GetMessages())),
		Timers:   timersFromWire(open.GetFirstByteMs(), open.GetIdleMs(), defaults),
	}
	for i, m := range in.GetMessages() {
		out, err := messageFromWire(i, m)
		if err != nil {
			return nil, err
		}
		req.Messages = append(req.Messages, out)
	}
	for _, t := range in.GetTools() {
		req.Tools = append(req.Tools, execution.Tool{Name: t.GetName(), Description: t.GetDescription(), Parameters: rawJSON(t.GetParametersJson())})
	}
	var err error
	if req.ToolChoice, err = execution.ParseToolChoice([]byte(in.GetToolChoiceJson())); err != nil {
		return nil, err
	}
	if req.Options, err = execution.ParseOptions([]byte(in.GetOptionsJson())); err != nil {
		return nil, err
	}
	return req, req.Check()
}

func messageFromWire(i int, m *pb.Message) (execution.Message, error) {
	out := execution.Message{Role: execution.Role(m.GetRole()), ToolCallID: m.GetToolCallId(), Name: m.GetName(),
		Reasoning: m.GetReasoning(), Failed: m.GetFailed()}
	for j, p := range m.GetParts() {
		switch v := p.GetPart().(type) {
		case *pb.Part_Text:
			out.Parts = append(out.Parts, execution.Part{Text: v.Text})
		case *pb.Part_Image:
			out.Parts = append(out.Parts, execution.Part{Image: &execution.Image{MediaType: v.Image.GetMediaType(), Data: v.Image.GetData()}})
		default: // of a newer edge: to leave it out would change what is asked
			return out, badOpen("messages[%d].parts[%d]: of a kind that this version doesn't know", i, j)
		}
	}
	for _, c := range m.GetToolCalls() {
		out.ToolCalls = append(out.ToolCalls, execution.ToolCall{ID: c.GetId(), Name: c.GetName(), Arguments: c.GetArgumentsFragment()})
	}
	return out, nil
}

// rawJSON is a text of JSON, nil when there is none.
func rawJSON(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

// endToRow is what the journal keeps of an end.
func endToRow(o outcome, seen answer, received int64, ended time.Time) store.Outcome {
	return store.Outcome{
		Progress: store.Progress{Usage: seen.usage, BytesIn: received, BytesOut: seen.bytes},
		Status:   store.StatusOf(o.status), Code: o.code(), Ended: ended,
	}
}

// rowToWire says how a background run ended that the journal remembers. One that the node's death interrupted ended
// for its caller as if the node had been lost.
func rowToWire(r *store.Row) *pb.RunEnd {
	end := &pb.RunEnd{
		RunId: r.RunID, Attempt: r.Attempt, Status: pb.RunStatus_RUN_STATUS_ERROR, Code: pb.FailureCode(r.Code),
		Usage: usageToWire(r.Usage), BytesIn: r.BytesIn, BytesOut: r.BytesOut, Background: true,
		Abandoned: r.Status == store.StatusAbandoned, StartedMs: r.Created.UnixMilli(), EndedMs: r.Ended.UnixMilli(),
	}
	switch r.Status {
	case store.StatusComplete:
		end.Status = pb.RunStatus_RUN_STATUS_COMPLETE
	case store.StatusCancelled:
		end.Status = pb.RunStatus_RUN_STATUS_CANCELLED
	case store.StatusAbandoned:
		end.Status = pb.RunStatus_RUN_STATUS_ABANDONED
	case store.StatusInterrupted:
		end.Code = pb.FailureCode(execution.CodeNodeLost)
	}
	return end
}
