package sim

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"iop/apps/edge"
	"iop/packages/go/execution"
)

// writeIdle is how long a caller may not take anything, as the surfaces have it.
const writeIdle = 60 * time.Second

// caller is one job's caller and what it has seen. Its own goroutine writes it; the others read it when it is done.
type caller struct {
	w    *world
	job  *job
	ctx  context.Context
	gone context.CancelCauseFunc

	began    time.Duration
	left     time.Duration // when it left, 0 = it stayed
	placed   time.Duration // at its last place, 0 = it had none
	node     string
	heads    int
	got      int          // bytes of a tunnel, pieces of a run
	took     atomic.Int64 // the bytes, for who looks meanwhile
	started  bool
	whole    bool // End was called
	stalled  bool
	seq      uint64
	outcome  *edge.Outcome // nil with done: it stopped following a background run
	done     time.Duration
	finished atomic.Bool // done is valid, as is all above
	edgeLife int         // of the edge that it asked
	orphan   bool        // that life ended before it was done
}

// start runs the caller of a job.
func (w *world) start(j *job) {
	e := w.edges[j.edge]
	c := &caller{w: w, job: j, began: w.now(), edgeLife: e.life}
	c.ctx, c.gone = context.WithCancelCause(context.Background())
	w.callers = append(w.callers, c)
	if !j.prompt() && j.kind == tunnel {
		w.slow[j.id] = c
	}
	w.tell(j.id, "%v", j)
	if !e.up() {
		w.tell(j.id, "edge%d isn't there", j.edge)
		c.done, c.orphan, c.edgeLife = w.now(), true, 0
		c.finished.Store(true)
		return
	}
	inside := e.inside
	w.working.Go(func() { c.call(inside) })
	if j.leave > 0 {
		w.after(j.leave, "", func() { c.left = w.now(); c.gone(nil) })
	}
	if j.cancel > 0 {
		w.after(j.cancel, "", func() {
			if e.up() && e.life == c.edgeLife {
				w.cancelled(j.id, inside.Cancel(j.id))
			}
		})
	}
}

// call asks, and notes how it ended.
func (c *caller) call(inside *edge.Inside) {
	j := c.job
	var out *edge.Outcome
	if j.kind == tunnel {
		out = c.tunnel(inside)
	} else {
		out = inside.Execute(c.ctx, &edge.RunSpec{
			RunID: j.id, Principal: j.principal, Adapter: j.adapter, Node: j.node, Target: target, Background: j.kind == background, Deadline: j.deadline,
			Input: &execution.Request{Messages: []execution.Message{{Role: execution.RoleUser, Parts: []execution.Part{{Text: j.id}}}}},
		}, c)
	}
	if out != nil {
		kept := *out
		c.outcome = &kept
	}
	c.done = c.w.now()
	defer c.finished.Store(true)
	if out == nil {
		c.w.tell(j.id, "caller follows no more, has %d", c.got)
		return
	}
	c.w.tell(j.id, "caller: %v after %d places on %s generation %d, has %d, head %v, whole %v", out.Code(), out.Attempts,
		out.NodeID, out.Generation, c.got, out.HeadSent, c.whole)
}

func (c *caller) tunnel(inside *edge.Inside) *edge.Outcome {
	j := c.job
	t := &edge.Tunnel{
		RunID: j.id, Principal: j.principal, Model: j.model, Route: inside.Route(j.model), Target: target, Deadline: j.deadline,
		Method: http.MethodPost, Path: "/v1/chat/completions", Header: http.Header{runHeader: {j.id}},
	}
	if j.request > 0 {
		t.Body = requestBody{j}
	}
	return inside.Tunnel(c.ctx, t, c)
}

// requestBody is the body of a job's request.
type requestBody struct{ j *job }

// Size implements service.Body.
func (b requestBody) Size() int64 { return int64(b.j.request) }

// ReadAt implements service.Body.
func (b requestBody) ReadAt(p []byte, off int64) (int, error) {
	n := min(len(p), b.j.request-int(off))
	fill(p[:n], b.j.id, 0, int(off))
	return n, nil
}

// Placed implements both sinks.
func (c *caller) Placed(at edge.Placement) {
	c.placed, c.node = c.w.now(), at.Node
	c.w.tell(c.job.id, "placed on %s, position %d", at.Node, at.Position)
}

// Head implements a tunnel's sink.
func (c *caller) Head(status int, _ http.Header) error {
	if c.heads++; c.heads > 1 || c.whole {
		c.w.breach("I1", "%s was given head %d, whole %v", c.job.id, c.heads, c.whole)
	}
	c.started = true
	c.w.tell(c.job.id, "head %d", status)
	return c.read()
}

// Body implements a tunnel's sink.
func (c *caller) Body(p []byte, _ bool) error {
	j := c.job
	switch {
	case c.heads != 1 || c.whole:
		c.w.breach("I1", "%s was given a body after %d heads, whole %v", j.id, c.heads, c.whole)
	case j.mode == failing && c.got+len(p) <= len(failedBody):
		if failedBody[c.got:c.got+len(p)] != string(p) {
			c.w.breach("I2", "%s was given another body", j.id)
		}
	default:
		if at := differs(p, j.id, 1, c.got); at >= 0 {
			c.w.breach("I2", "%s: byte %d of the answer isn't what the provider said", j.id, at)
		}
	}
	c.got += len(p)
	c.took.Add(int64(len(p)))
	if len(p) == 0 {
		return nil
	}
	return c.read()
}

// End implements a tunnel's sink.
func (c *caller) End() error {
	if c.whole {
		c.w.breach("I1", "%s was ended twice", c.job.id)
	}
	c.whole = true
	return nil
}

// Event implements a run's sink.
func (c *caller) Event(seq uint64, e execution.Event) error {
	if c.seq++; seq != c.seq {
		c.w.breach("I2", "%s: event %d came where %d was due", c.job.id, seq, c.seq)
		c.seq = seq
	}
	c.started = true
	switch e.Kind {
	case execution.EventStart:
		c.heads++
	case execution.EventDelta:
		if want := text(c.job.id, 1, c.got, c.job.size); e.Text != want {
			c.w.breach("I2", "%s: piece %d is %.40q, %.40q was due", c.job.id, c.got, e.Text, want)
		}
		c.got++
	}
	return c.read()
}

// read is the time that a caller takes to read what it was given.
func (c *caller) read() error {
	pause := c.job.slow
	if c.job.stall > 0 && !c.stalled && c.got >= c.job.answer()/2 {
		c.stalled = true
		pause = c.job.stall
		c.w.tell(c.job.id, "caller stalls for %v", pause)
	}
	if pause == 0 {
		return nil
	}
	if sleep(c.ctx, min(pause, writeIdle)) != nil {
		return &execution.Failure{Code: execution.CodeClientGone, Origin: execution.OriginCaller, Text: "gone"}
	}
	if pause > writeIdle {
		return &execution.Failure{Code: execution.CodeClientSlow, Origin: execution.OriginCaller, Text: "slow"}
	}
	return nil
}
