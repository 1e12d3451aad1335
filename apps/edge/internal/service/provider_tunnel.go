package service

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// Body is a whole request body that was read before admission. It can be read again, since an attempt that never
// started at a node is sent anew. ReadAt may be called by a goroutine of the service while SubmitProviderTunnel runs,
// and never after it has returned.
type Body interface {
	io.ReaderAt
	Size() int64
}

// Tunnel is one provider HTTP request to be carried as it is. SubmitProviderTunnel doesn't change it and doesn't keep
// it beyond its return.
type Tunnel struct {
	RunID     string
	SessionID string
	Principal string // id of the principal, as the scheduler and the node see it
	Model     string // the public name that was asked for
	Route     *config.Route
	Target    string // what the adapter is asked to run

	Method string
	Path   string      // origin-form, raw, without the query
	Query  string      // raw, without the question mark
	Header http.Header // without hop-by-hop fields and without whatever the edge accepts a key in
	Body   Body        // nil = none

	// Deadline bounds the whole run, waiting included; 0 = none. The route's bounds it, too.
	Deadline time.Duration
}

// Sink takes the response of a tunnel. The goroutine that called SubmitProviderTunnel calls its methods, one at a
// time. An error from it is a *execution.Failure with client_gone or client_slow, and means that nobody wants the
// rest. A sink bounds its own writes (write_idle).
type Sink interface {
	// Placed tells where the run went and how long it waited, before anything else. It is called again when the
	// run went to another place; the last call counts.
	Placed(nodeID string, queued time.Duration)
	// Head writes the status and the headers, at most once and first. The sink may keep h.
	Head(status int, h http.Header) error
	// Body writes a piece. Flush says that nothing more is at hand: what was written must reach the caller now. An
	// empty p with flush only flushes. The sink doesn't keep p.
	Body(p []byte, flush bool) error
	// End finishes a response that is whole. After a failure it isn't called.
	End() error
}

// Outcome is how a run ended; there is exactly one. With a Failure and HeadSent false nothing was written, and the
// surface answers with its dialect's error; with a Failure and HeadSent true the surface aborts the connection.
type Outcome struct {
	RunID      string
	NodeID     string // of the last attempt; "" when the run never had a place
	Adapter    string
	Generation uint64
	Attempts   int   // places that the run was given; 0 = it never left the queue
	Tried      []Try // the attempts before the last one, when there was more than one
	Failure    *execution.Failure
	HeadSent   bool // the sink was given the head
	Status     int  // the provider's, 0 = no head

	Queued    time.Duration // from submission to the last place
	FirstByte time.Duration // from submission to the head, 0 = no head
	Duration  time.Duration
	BytesIn   int64 // size of the request body
	BytesOut  int64 // response body bytes that the sink took
	Usage     execution.Usage
}

// Try is an attempt that didn't decide its run.
type Try struct {
	NodeID, Adapter string
	Code            execution.Code
}

// OK reports whether the run succeeded.
func (o *Outcome) OK() bool { return o.Failure == nil }

// SubmitProviderTunnel carries t to a node and the response to sink, in the caller's goroutine, and returns the run's
// one outcome. When ctx ends, the run is cancelled and the call returns within a second, whatever the node does; the
// cause of ctx may be an execution.CancelCause, any other means that the caller is gone.
func (s *Service) SubmitProviderTunnel(ctx context.Context, t *Tunnel, sink Sink) *Outcome {
	r := s.newRun(ctx, t, sink)
	if f := s.runs.enter(t.RunID, r); f != nil {
		r.decide(f)
		return s.ended(r)
	}
	defer s.runs.leave(t.RunID)
	r.drive()
	return s.ended(r)
}

// ended tells everybody who is to know.
func (s *Service) ended(r *Run) *Outcome {
	o := r.finish()
	s.log(r.tunnel, o)
	for _, observer := range s.cfg.Observers {
		observer.Ended(r.tunnel, o)
	}
	return o
}

// log writes the run's one line.
func (s *Service) log(t *Tunnel, o *Outcome) {
	line := s.cfg.Log.Info()
	code := execution.CodeOK
	if o.Failure != nil {
		code = o.Failure.Code
		line = line.Stringer("origin", o.Failure.Origin).Str("error", o.Failure.Text)
	}
	line = line.Str("run_id", o.RunID).Str("principal", t.Principal).Str("model", t.Model).Str("target", t.Target).
		Str("node_id", o.NodeID).Str("adapter", o.Adapter).Uint64("connection_generation", o.Generation).
		Int("attempts", o.Attempts).Stringer("code", code).Int("status", o.Status).
		Int64("queue_ms", o.Queued.Milliseconds()).Int64("first_byte_ms", o.FirstByte.Milliseconds()).
		Int64("duration_ms", o.Duration.Milliseconds()).Int64("bytes_in", o.BytesIn).Int64("bytes_out", o.BytesOut)
	if t.SessionID != "" {
		line = line.Str("session_id", t.SessionID)
	}
	if len(o.Tried) > 0 {
		tried := make([]string, len(o.Tried))
		for i, t := range o.Tried {
			tried[i] = t.NodeID + "/" + t.Adapter + " " + t.Code.String()
		}
		line = line.Strs("tried", tried)
	}
	line = count(line, "input_tokens", o.Usage.Input)
	line = count(line, "output_tokens", o.Usage.Output)
	line.Msg("run ended")
}

// count adds a token count that is known.
func count(line *zerolog.Event, name string, n *int64) *zerolog.Event {
	if n == nil {
		return line
	}
	return line.Int64(name, *n)
}

// deadline is the limit of the whole run, 0 = none.
func (t *Tunnel) deadline() time.Duration {
	if t.Deadline > 0 && (t.Route.Deadline == 0 || t.Deadline < t.Route.Deadline) {
		return t.Deadline
	}
	return t.Route.Deadline
}
