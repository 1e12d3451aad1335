package node

import (
	"context"
	"errors"
	"net/http"
	"time"
	"unicode/utf8"

	"iop/apps/node/internal/router"
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

func failed(f *execution.Failure) outcome { return outcome{execution.StatusError, f} }

func cancelled(cause execution.CancelCause) outcome {
	return outcome{execution.StatusCancelled, &execution.Failure{Code: cause.Code(), Origin: causeOrigin(cause), Text: cause.Error()}}
}

// outcomeOf is the one table from what an adapter returned (err), what the sink saw, and why the context ended, to the
// outcome. A whole answer stands whatever came after it; a cancel stands over whatever the adapter made of it.
func outcomeOf(ctx context.Context, err error, seen answer) outcome {
	var own *execution.Failure
	switch {
	case errors.As(seen.err, &own):
		return failed(own) // the sink refused what the adapter gave it
	case err == nil && seen.err == nil && seen.head:
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

// tunnelFromWire makes the request that the adapter gets. Timers that the route doesn't set are the node's own.
func tunnelFromWire(t *pb.ProviderTunnelRequest, body *feed, defaults execution.Timers) *execution.TunnelRequest {
	req := &execution.TunnelRequest{
		Method:        t.GetMethod(),
		Path:          t.GetPath(),
		Query:         t.GetQuery(),
		Header:        make(http.Header, len(t.GetHeaders())),
		ContentLength: t.GetContentLength(),
		Target:        t.GetTarget(),
		Timers:        defaults,
	}
	for _, h := range t.GetHeaders() {
		name := http.CanonicalHeaderKey(h.GetName())
		req.Header[name] = append(req.Header[name], string(h.GetValue()))
	}
	if req.ContentLength != 0 {
		req.Body = body
	}
	if ms := t.GetFirstByteMs(); ms > 0 {
		req.Timers.FirstByte = milliseconds(ms)
	}
	if ms := t.GetIdleMs(); ms > 0 {
		req.Timers.Idle = milliseconds(ms)
	}
	return req
}

// maxMilliseconds is the longest time that a peer can name; it is beyond every real one and far from overflow.
const maxMilliseconds = int64(365 * 24 * time.Hour / time.Millisecond)

func milliseconds(ms int64) time.Duration {
	return time.Duration(min(ms, maxMilliseconds)) * time.Millisecond
}

// specFromWire reads one adapter of a projection.
func specFromWire(c *pb.AdapterConfig) router.Spec {
	spec := router.Spec{
		Name:       c.GetName(),
		Kind:       c.GetKind(),
		BaseURL:    c.GetBaseUrl(),
		Revision:   c.GetAdapterRevision(),
		Capacity:   int(c.GetMaxConcurrency()),
		AllowPaths: c.GetAllowPaths(),
		Targets:    c.GetTargets(),
	}
	if len(c.GetOptions()) > 0 {
		spec.Options = make(map[string]string, len(c.GetOptions()))
	}
	for _, kv := range c.GetOptions() {
		spec.Options[kv.GetKey()] = kv.GetValue()
	}
	return spec
}

// What an adapter may say of itself: a provider's words are bounded before they go on.
const (
	maxReasonText  = 256
	maxVersionText = 128
	maxModelName   = 512
	maxStateBytes  = 768 << 10 // of all model names in one message, whose cap is 1 MiB
)

// statesToWire writes the adapters' states. A list of models that is too long for one message is cut: the edge then
// finds the rest by asking for them.
func statesToWire(states []router.State) []*pb.AdapterState {
	out := make([]*pb.AdapterState, 0, len(states))
	left := maxStateBytes
	for _, s := range states {
		a := &pb.AdapterState{
			Name:      s.Name,
			Revision:  s.Revision,
			Available: s.Caps.Available,
			Reason:    cut(s.Caps.Reason, maxReasonText),
			Capacity:  int32(s.Capacity),
			InFlight:  int32(s.InFlight),
			Version:   cut(s.Caps.Version, maxVersionText),
		}
		for _, m := range s.Caps.Models {
			if len(m.Name) > maxModelName {
				continue
			}
			if left -= len(m.Name) + 8; left < 0 {
				break
			}
			a.Models = append(a.Models, &pb.ModelState{Name: cut(m.Name, maxModelName), Loaded: m.Loaded})
		}
		out = append(out, a)
	}
	return out
}

// endToWire says that an execution is over.
func endToWire(t *task, o outcome, seen answer, ended time.Time) *pb.RunEnd {
	return &pb.RunEnd{
		RunId:     t.id(),
		Attempt:   t.attempt,
		Status:    pb.RunStatus(o.status),
		Code:      pb.FailureCode(o.code()),
		Usage:     usageToWire(seen.usage),
		BytesIn:   t.body.received(),
		BytesOut:  seen.bytes,
		Frames:    seen.frames,
		Abandoned: o.status == execution.StatusAbandoned,
		StartedMs: t.started.UnixMilli(),
		EndedMs:   ended.UnixMilli(),
	}
}
