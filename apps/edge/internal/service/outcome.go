package service

import (
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// Outcome is how a run ended; there is exactly one. With a Failure and HeadSent false nothing was given to the sink, and
// the surface answers with its dialect's error; with a Failure and HeadSent true the surface ends what it has begun: a
// tunnel's connection is aborted, a run's events end with an error.
type Outcome struct {
	RunID      string
	Kind       execution.Kind // of the last attempt; before the first, what was asked for
	SessionID  string
	Principal  string
	Route      *config.Route // that a tunnel took; nil for a run, or when none was found
	Model      string        // the public name that a tunnel asked for
	Target     string
	Background bool

	NodeID     string // of the last attempt; "" when the run never had a place
	Adapter    string
	Generation uint64
	Attempts   int   // places that the run was given; 0 = it never left the queue
	Tried      []Try // the attempts before the last one, when there was more than one

	Failure      *execution.Failure // nil = it succeeded
	FinishReason string             // of a run that succeeded: stop, length, tool_calls, …
	HeadSent     bool               // the sink was given a tunnel's head, or a run's first event
	Status       int                // the provider's, 0 = no head

	Queued    time.Duration // from submission to the last place
	FirstByte time.Duration // from submission to the head or the first event, 0 = there was none
	Duration  time.Duration
	BytesIn   int64 // size of the request's body, as it was last sent
	BytesOut  int64 // bytes of the response's body, or of text and arguments, that the sink took
	Usage     execution.Usage

	lines, linesPerEvent int64 // of a tunnel's streamed answer, by which its tokens are estimated
}

// Try is an attempt that didn't decide its run.
type Try struct {
	NodeID, Adapter string
	Code            execution.Code
}

// OK reports whether the run succeeded.
func (o *Outcome) OK() bool { return o.Failure == nil }

// Code is the code of the failure, CodeOK when there is none.
func (o *Outcome) Code() execution.Code {
	if o.Failure == nil {
		return execution.CodeOK
	}
	return o.Failure.Code
}

// Observer is told how runs and tunnels end: metrics, a log line. It doesn't keep its argument beyond the call, and it
// doesn't block.
type Observer interface {
	Ended(o *Outcome)
}

// ended tells everybody who is to know.
func (s *Service) ended(r *Run) *Outcome {
	o := r.finish()
	r.over(o)
	s.log(o)
	if s.cfg.Meter != nil && o.Attempts > 0 {
		s.cfg.Meter.Ended(o)
	}
	for _, observer := range s.cfg.Observers {
		observer.Ended(o)
	}
	return o
}

// log writes the run's one line.
func (s *Service) log(o *Outcome) {
	line := s.cfg.Log.Info()
	if o.Failure != nil {
		line = line.Stringer("origin", o.Failure.Origin).Str("error", o.Failure.Text)
	}
	line = line.Str("run_id", o.RunID).Stringer("kind", o.Kind).Str("principal", o.Principal).Str("model", o.Model).
		Str("target", o.Target).Str("node_id", o.NodeID).Str("adapter", o.Adapter).
		Uint64("connection_generation", o.Generation).
		Int("attempts", o.Attempts).Stringer("code", o.Code()).Int("status", o.Status).
		Int64("queue_ms", o.Queued.Milliseconds()).Int64("first_byte_ms", o.FirstByte.Milliseconds()).
		Int64("duration_ms", o.Duration.Milliseconds()).Int64("bytes_in", o.BytesIn).Int64("bytes_out", o.BytesOut)
	if o.SessionID != "" {
		line = line.Str("session_id", o.SessionID)
	}
	if o.Background {
		line = line.Bool("background", true)
	}
	if o.FinishReason != "" {
		line = line.Str("finish_reason", o.FinishReason)
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
