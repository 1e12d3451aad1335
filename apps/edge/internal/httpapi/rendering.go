package httpapi

import (
	"net/http"
	"strconv"

	"iop/apps/edge/internal/dialect"
	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
)

// rendering writes the answer to a request that went as a run, in the API that the caller speaks. It implements
// service.EventSink; the driver of the call calls its methods, and finish last.
type rendering struct {
	request *dialect.Request
	atOnce  string // finish reason of a request that needs no run, "" = it does
	out     *sink
	body    *body // of the request: what is collected of the answer counts against its budget
	answer  dialect.Answer
	text    []byte // of one event, used again
}

// Placed implements service.EventSink.
func (r *rendering) Placed(at service.Placement) { r.out.Placed(at) }

// Event implements service.EventSink. What an event looks like is with the caller when it returns.
func (r *rendering) Event(_ uint64, e execution.Event) error {
	var err error
	if !r.request.Stream {
		if f := r.body.collect(e); f != nil {
			return f
		}
	}
	if r.text, err = r.answer.Event(r.text[:0], e); err != nil || len(r.text) == 0 {
		return err
	}
	return r.write(r.text)
}

// write writes a piece of a stream.
func (r *rendering) write(text []byte) error {
	if !r.out.begun {
		err := r.out.Head(http.StatusOK, http.Header{"Content-Type": {r.answer.ContentType()}, "Cache-Control": {"no-store"},
			"X-Accel-Buffering": {"no"}})
		if err != nil {
			return err
		}
	}
	return r.out.Body(text, true)
}

// finish ends the answer by the run's outcome. A failure is left to be told by an error response when nothing was
// written, and by the end of the connection otherwise; within a stream the API's own word for it comes before that.
func (r *rendering) finish(o *service.Outcome) *execution.Failure {
	f := o.Failure
	if f == nil {
		text, err := r.answer.End(r.text[:0], execution.Completion{FinishReason: o.FinishReason, Usage: o.Usage})
		if err == nil {
			err = r.end(text)
		}
		f = execution.AsFailure(err, execution.OriginEdge)
	}
	if f == nil || !r.out.begun || f.Code == execution.CodeClientGone || f.Code == execution.CodeClientSlow {
		return f
	}
	if text := r.answer.Fail(r.text[:0], f); len(text) > 0 {
		_ = r.out.Body(text, true) // the connection is aborted next, whatever comes of it
	}
	return f
}

// inItsWords names what an adapter can't tell its provider as the caller wrote it: the adapter knows the run only.
func (r *rendering) inItsWords(ref *refusal) {
	place, why := dialect.Place(ref.failure.Text)
	if place == "" {
		return
	}
	f := *ref.failure
	ref.param = r.request.Names.Of(place)
	f.Text = ref.param + ": " + why
	ref.failure = &f
}

// end writes the last piece of a stream, or the whole of an answer that is one object.
func (r *rendering) end(text []byte) error {
	var err error
	switch {
	case r.request.Stream && (len(text) > 0 || !r.out.begun):
		err = r.write(text)
	case !r.request.Stream:
		err = r.out.Head(http.StatusOK, http.Header{"Content-Type": {r.answer.ContentType()}, "Cache-Control": {"no-store"},
			"Content-Length": {strconv.Itoa(len(text))}})
		if err == nil {
			err = r.out.Body(text, false)
		}
	}
	if err != nil {
		return err
	}
	return r.out.End()
}

// answerAtOnce answers a request that asks for nothing that a run would do.
func (h *Handler) answerAtOnce(c *call, run *rendering) *refusal {
	text, err := run.answer.End(nil, execution.Completion{FinishReason: run.atOnce})
	if err != nil {
		return failed(execution.AsFailure(err, execution.OriginEdge))
	}
	h.observe(c, nil, http.StatusOK)
	c.respond(http.StatusOK, run.answer.ContentType(), text)
	return nil
}
