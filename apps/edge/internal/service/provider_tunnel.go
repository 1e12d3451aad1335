package service

import (
	"context"
	"io"
	"net/http"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/tracing"
	pb "iop/proto/iop"
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

	// Run is the same request as a normalized run, for adapters that don't carry Path; nil = only those that do are
	// candidates.
	Run *Alternative

	// Trace is where in its caller's trace the request stands; the zero value = in none. Header doesn't say it.
	Trace tracing.Context

	// Deadline bounds the whole run, waiting included; 0 = none. The route's bounds it, too.
	Deadline time.Duration
}

// Alternative is a tunnel's request as a normalized run.
type Alternative struct {
	// Input is what the provider is told: Messages, Tools, ToolChoice and Options. Its other fields are filled in here
	// and at the node.
	Input *execution.Request
	// Events takes the answer of an attempt that went as a run, and the tunnel's Sink that of any other: of the two only
	// one is given more than Placed.
	Events EventSink
}

// Placement is where a run went.
type Placement struct {
	Node     string
	Queued   time.Duration // spent waiting, over all attempts
	Position int           // in the queue when it first had to wait, from 1; 0 = never waited
}

// Sink takes the response of a tunnel. The goroutine that called SubmitProviderTunnel calls its methods, one at a
// time. An error from it is a *execution.Failure with client_gone or client_slow, and means that nobody wants the
// rest. A sink bounds its own writes (write_idle).
type Sink interface {
	// Placed tells where the run went and how long it waited, before anything else. It is called again when the
	// run went to another place; the last call counts.
	Placed(at Placement)
	// Head writes the status and the headers, at most once and first. The sink may keep h.
	Head(status int, h http.Header) error
	// Body writes a piece. Flush says that nothing more is at hand: what was written must reach the caller now. An
	// empty p with flush only flushes. The sink doesn't keep p.
	Body(p []byte, flush bool) error
	// End finishes a response that is whole. After a failure it isn't called.
	End() error
}

// SubmitProviderTunnel carries t to a node and the response to sink, in the caller's goroutine, and returns the run's
// one outcome, whose Kind says how it went in the end: as it is where the adapter that got it carries its path, else as
// t.Run. When ctx ends, the run is cancelled and the call returns within a second, whatever the node does; the
// cause of ctx may be an execution.CancelCause, any other means that the caller is gone.
func (s *Service) SubmitProviderTunnel(ctx context.Context, t *Tunnel, sink Sink) *Outcome {
	j := &tunnelJob{Tunnel: t, sink: sink, route: t.Route}
	f := j.alternative(s.cfg.MaxInput)
	if f == nil {
		f = j.possible(s.cfg.State())
	}
	r := s.newRun(ctx, j, t.deadline(), Outcome{RunID: t.RunID, Kind: execution.KindTunnel, SessionID: t.SessionID,
		Principal: t.Principal, Route: t.Route, Model: t.Model, Target: t.Target, BytesIn: sizeOf(t.Body)})
	r.where.adapter, r.trace = t.Route.Adapter, t.Trace
	if f == nil {
		f = s.enter(r)
	}
	if f != nil {
		r.decide(f)
		return s.ended(r)
	}
	defer s.leave(r)
	r.drive()
	return s.ended(r)
}

// deadline is the limit of the whole run, 0 = none.
func (t *Tunnel) deadline() time.Duration {
	if t.Deadline > 0 && (t.Route.Deadline == 0 || t.Deadline < t.Route.Deadline) {
		return t.Deadline
	}
	return t.Route.Deadline
}

// tunnelJob is a tunnel as a run carries it. It is its own carrier to an adapter that carries its path.
type tunnelJob struct {
	*Tunnel
	sink  Sink
	route *config.Route // in the version of the configuration that it was admitted by last
	resp  response
	run   *asRun // carries it to the others, nil = nothing does
}

// kind implements carrier.
func (j *tunnelJob) kind() execution.Kind { return execution.KindTunnel }

// body implements carrier.
func (j *tunnelJob) body() Body { return j.Body }

// placed implements carrier.
func (j *tunnelJob) placed(at Placement) { j.sink.Placed(at) }

// open implements carrier.
func (j *tunnelJob) open(r *Run, g *admission.Grant) *pb.WorkOpen {
	return &pb.WorkOpen{
		ConnectionGeneration: g.Generation,
		Attempt:              r.attempt,
		Work: &pb.WorkOpen_Tunnel{Tunnel: &pb.ProviderTunnelRequest{
			RunId:           j.RunID,
			Adapter:         g.Adapter,
			Method:          j.Method,
			Path:            j.Path,
			Query:           j.Query,
			Headers:         headersOf(j.Header),
			ContentLength:   r.out.BytesIn,
			AdapterRevision: g.AdapterRevision,
			FirstByteMs:     j.route.FirstByte.Milliseconds(),
			IdleMs:          j.route.Idle.Milliseconds(),
			DeadlineMs:      r.remaining(),
			Target:          j.Target,
			SessionId:       j.SessionID,
			Route:           j.route.Model,
			PrincipalRef:    j.Principal,
		}},
	}
}
