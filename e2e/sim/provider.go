package sim

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"iop/apps/node"
	"iop/packages/go/execution"
)

// runHeader carries a tunnel's job to its provider.
const runHeader = "X-Sim-Job"

// target is what every job asks for.
const target = "model"

// providers are what stands beside the nodes, as far as it is asked.
type providers struct {
	w *world

	mu    sync.Mutex
	calls []*call
	done  map[string]int       // executions of a job so far
	busy  map[string]int       // by seat
	built map[string][]*driver // by seat
	down  map[string]bool
}

// call is one time that a driver was called.
type call struct {
	job       *job
	node      string
	host      string        // the machine
	seat      string        // the provider of one life of a node
	execution int           // of the job, from 1; 0 = nothing reached the provider
	said      atomic.Int64  // bytes of the answer that were taken from the provider
	begun     time.Duration // of that life: one that crashes may still call, and forgets it
	began     time.Duration
	cancelled time.Duration // 0 = it wasn't
	ended     time.Duration // 0 = it hasn't
}

func newProviders(w *world) *providers {
	return &providers{w: w, done: map[string]int{}, busy: map[string]int{}, built: map[string][]*driver{}, down: map[string]bool{}}
}

// driver is the driver of one adapter of one life of a node.
type driver struct {
	p        *providers
	node     string
	host     string
	begun    time.Duration // of the life
	seat     string
	capacity int // the most places that this seat has had since the driver was built
}

func (p *providers) build(n *nodeHost, life string, spec node.AdapterSpec) *driver {
	d := &driver{p: p, node: n.id, host: n.host, begun: n.begun, seat: life + "/" + spec.Name + "/" + spec.BaseURL, capacity: spec.Capacity}
	p.mu.Lock()
	defer p.mu.Unlock()
	// A run that was accepted before a reload is called through its old driver, beside those that the new one lets in.
	for _, older := range p.built[d.seat] {
		older.capacity = max(older.capacity, d.capacity)
	}
	p.built[d.seat] = append(p.built[d.seat], d)
	return d
}

// setDown makes the provider of a node unreachable for probes, or reachable.
func (p *providers) setDown(nodeID string, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down[nodeID] = on
}

// working names a provider that is being called.
func (p *providers) working() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if c.ended == 0 {
			return c.seat
		}
	}
	return ""
}

// Probe implements execution.Provider.
func (d *driver) Probe(ctx context.Context) execution.Capabilities {
	now := strconv.FormatInt(time.Now().UnixNano(), 10)
	if err := sleep(ctx, newDice(d.p.w.seed, "probe", d.seat, now).between(time.Millisecond, 30*time.Millisecond)); err != nil {
		return execution.Capabilities{Reason: "no answer"}
	}
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if d.p.down[d.node] {
		return execution.Capabilities{Reason: "connection refused"}
	}
	return execution.Capabilities{Available: true, Version: "sim", Models: []execution.Model{{Name: target}}}
}

// Close implements execution.Provider.
func (d *driver) Close() {}

// begin notes a call.
func (d *driver) begin(ctx context.Context, id string) (c *call, end func()) {
	p := d.p
	c = &call{job: p.w.jobs[id], node: d.node, host: d.host, begun: d.begun, seat: d.seat, began: p.w.now()}
	p.mu.Lock()
	p.calls = append(p.calls, c)
	p.busy[d.seat]++
	if p.busy[d.seat] > d.capacity {
		p.w.breach("I3", "%s has %d executions at once, %d are allowed", d.seat, p.busy[d.seat], d.capacity)
	}
	p.mu.Unlock()
	p.w.tell(id, "provider %s is called", d.seat)
	unhook := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		c.cancelled = p.w.now()
		p.mu.Unlock()
		// Why isn't told: a cancel and the end of the stream arrive in one instant, and either may be the first.
		p.w.tell(id, "provider %s is cancelled", d.seat)
	})
	return c, func() {
		unhook()
		p.mu.Lock()
		c.ended = p.w.now()
		p.busy[d.seat]--
		p.mu.Unlock()
		p.w.tell(id, "provider %s is done", d.seat)
	}
}

// executes notes that a request has reached the provider.
func (d *driver) executes(c *call) {
	p := d.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done[c.job.id]++
	c.execution = p.done[c.job.id]
	if c.execution > 1 {
		p.w.breach("I1", "%s reached a provider %d times", c.job.id, c.execution)
	}
}

// Tunnel implements execution.Tunneler.
func (d *driver) Tunnel(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	c, end := d.begin(ctx, req.Header.Get(runHeader))
	defer end()
	j := c.job
	if j.mode == refused {
		return unreachable(ctx, j)
	}
	if err := d.show(ctx, c, req.Credential); err != nil {
		return err
	}
	if err := d.take(j, req); err != nil {
		return cause(ctx, err)
	}
	d.executes(c)
	if err := wait(ctx, j, req.Timers); err != nil {
		return err
	}
	switch j.mode {
	case forgetful:
		return nil
	case failing:
		if err := sink.Head(http.StatusInternalServerError, http.Header{}); err != nil {
			return err
		}
		return sink.Body([]byte(failedBody))
	}
	head := http.Header{"Content-Type": {"application/octet-stream"}}
	if j.sized {
		head.Set("Content-Length", strconv.Itoa(j.answer()))
	}
	if err := sink.Head(http.StatusOK, head); err != nil {
		return err
	}
	buf := make([]byte, j.size)
	return j.speak(ctx, req.Timers, func(piece int) error {
		fill(buf, j.id, uint64(c.execution), piece*j.size)
		err := sink.Body(buf)
		c.said.Add(int64(len(buf)))
		return err
	})
}

// take reads the request as a provider does, and holds it against what the caller sent.
func (d *driver) take(j *job, req *execution.TunnelRequest) error {
	if req.Body == nil {
		if j.request != 0 {
			d.p.w.breach("I2", "%s: the provider was sent no body, %d bytes were due", j.id, j.request)
		}
		return nil
	}
	body, err := io.ReadAll(req.Body)
	if at := differs(body, j.id, 0, 0); at >= 0 {
		d.p.w.breach("I2", "%s: byte %d of the request isn't what the caller sent", j.id, at)
	}
	if err == nil && len(body) != j.request {
		d.p.w.breach("I2", "%s: the provider was sent %d bytes as the whole request, %d were due", j.id, len(body), j.request)
	}
	return err
}

// Execute implements execution.Executor.
func (d *driver) Execute(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
	c, end := d.begin(ctx, req.RunID)
	defer end()
	j := c.job
	if j.mode == refused {
		return execution.Completion{}, unreachable(ctx, j)
	}
	if err := d.show(ctx, c, req.Credential); err != nil {
		return execution.Completion{}, err
	}
	d.executes(c)
	if err := wait(ctx, j, req.Timers); err != nil {
		return execution.Completion{}, err
	}
	switch j.mode {
	case forgetful: // what stands for it here: an end without an end mark
		return execution.Completion{}, execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "no end mark")
	case failing:
		return execution.Completion{}, &execution.Failure{Code: execution.CodeUpstreamError, Origin: execution.OriginProvider, UpstreamStatus: 500}
	}
	if err := emit(execution.Event{Kind: execution.EventStart, Model: target}); err != nil {
		return execution.Completion{}, err
	}
	err := j.speak(ctx, req.Timers, func(piece int) error {
		return emit(execution.Event{Kind: execution.EventDelta, Text: text(j.id, uint64(c.execution), piece, j.size)})
	})
	return execution.Completion{FinishReason: "stop"}, err
}

// speak gives the pieces of an answer, as far as the mode lets it.
func (j *job) speak(ctx context.Context, timers execution.Timers, say func(piece int) error) error {
	for i := range j.pieces {
		if i > 0 {
			if err := sleep(ctx, j.gap+time.Duration(i)); err != nil {
				return err
			}
		}
		if i == j.after {
			if err := j.shows(ctx, timers); err != nil {
				return err
			}
		}
		if err := say(i); err != nil {
			return err
		}
	}
	return nil
}

// shows is the moment at which a provider that isn't good shows it.
func (j *job) shows(ctx context.Context, timers execution.Timers) error {
	switch j.mode {
	case cut:
		return execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "the provider closed the connection")
	case stalling:
		return limited(ctx, timers.Idle, execution.CodeIdleTimeout)
	case panicking:
		panic("the driver crashes as it was told to")
	case stubborn:
		time.Sleep(j.deaf)
	}
	return nil
}

// wait is the time to the first byte.
func wait(ctx context.Context, j *job, timers execution.Timers) error {
	if j.mode == silent {
		return limited(ctx, timers.FirstByte, execution.CodeFirstByteTimeout)
	}
	return sleep(ctx, j.first)
}

// limited waits for ever, which is as long as the limit.
func limited(ctx context.Context, limit time.Duration, code execution.Code) error {
	if err := sleep(ctx, limit); err != nil {
		return err
	}
	return execution.Failf(code, execution.OriginProvider, "nothing came for %v", limit)
}

func unreachable(ctx context.Context, j *job) error {
	if err := sleep(ctx, j.first/10); err != nil {
		return err
	}
	return &execution.Failure{Code: execution.CodeUpstreamConnect, Origin: execution.OriginProvider, Text: "connection refused", NothingSent: true}
}

// cause is err, or why ctx ended.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// sleep waits, or returns why ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
