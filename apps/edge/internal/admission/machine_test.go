package admission

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"iop/packages/go/execution"
)

// TestSchedulerAgainstModel plays random calls against the scheduler and the model (place table and waiting), and
// compares them after each: who was granted what, who was refused why, who holds and who waits. CP-01, CP-07.
func TestSchedulerAgainstModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Rounds, since rapid stops at a day of the bubble's time; and a TB without Deadline, which bubbles don't have.
		for range 10 {
			rapid.Check(struct{ testing.TB }{t}, play)
		}
	})
}

func play(t *rapid.T) {
	m := newMachine()
	defer m.stop()
	t.Repeat(map[string]func(*rapid.T){
		"":              m.compare,
		"publish":       m.publish,
		"publish2":      m.publish,
		"acquire":       m.acquire,
		"acquire2":      m.acquire,
		"acquire3":      m.acquire,
		"again":         m.again,
		"cancel":        m.cancel,
		"sent":          m.sent,
		"sent2":         m.sent,
		"release":       m.release,
		"rejected":      m.rejected,
		"rejected busy": m.rejectedBusy,
		"decided":       m.decided,
		"ended":         m.ended,
		"ended2":        m.ended,
		"fence":         m.fence,
		"adopt":         m.adopt,
		"saturated":     m.saturated,
		"drain":         m.drain,
		"advance":       m.advance,
	})
	m.finish(t)
}

// outcome is what an Acquire returned.
type outcome struct {
	grant *Grant
	err   error
}

type machine struct {
	model
	s        *Scheduler
	names    int
	calls    map[*modelRequest]*call // Acquires that haven't been looked at
	requests []*modelRequest
	told     chan connID // OnUnconfirmed
	ops      int
}

type call struct {
	cancel context.CancelCauseFunc
	done   chan outcome
}

var errGone = errors.New("caller gone")

func newMachine() *machine {
	m := &machine{calls: map[*modelRequest]*call{}, told: make(chan connID, 1000)}
	m.over = map[string]uint64{}
	m.s = New(Config{OnUnconfirmed: func(n string, g uint64) { m.told <- connID{n, g} }})
	return m
}

func (m *machine) stop() {
	for _, c := range m.calls {
		c.cancel(errGone)
	}
	synctest.Wait()
}

// tick gives every operation a moment of its own, so that no two timers fire at once.
func (m *machine) tick() {
	m.ops++
	time.Sleep(time.Nanosecond)
	synctest.Wait()
}

func genNodeID(t *rapid.T) string { return rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node") }

// genConn draws a generation around the newest known one.
func (m *machine) genConn(t *rapid.T, deltas ...int) connID {
	node := genNodeID(t)
	newest := 1
	for _, c := range m.conns {
		if c.connID.node == node {
			newest = max(newest, int(c.generation))
		}
	}
	newest = max(newest, int(m.over[node]))
	return connID{node, uint64(max(0, newest+rapid.SampledFrom(deltas).Draw(t, "generation")))}
}

func (m *machine) publish(t *rapid.T) {
	id := m.genConn(t, -1, 0, 0, 0, 0, 1)
	n := Node{ID: id.node, Generation: id.generation, Dispatchable: rapid.IntRange(0, 5).Draw(t, "dispatchable") > 0}
	for _, name := range rapid.SampledFrom([][]string{{"a"}, {"b"}, {"a", "b"}, {"b", "a"}, {}}).Draw(t, "adapters") {
		a := Adapter{Name: name, Capacity: rapid.IntRange(0, 3).Draw(t, "capacity"),
			Available: rapid.IntRange(0, 5).Draw(t, "available") > 0}
		if rapid.Bool().Draw(t, "loaded") {
			a.Models = []execution.Model{{Name: "model", Loaded: true}}
		}
		n.Adapters = append(n.Adapters, a)
	}
	m.tick()
	m.model.publish(n)
	gone := m.hopeless(time.Now())
	m.s.Publish(n)
	m.settle(t, m.expect(gone, execution.CodeNoNode))
}

func (m *machine) acquire(t *rapid.T) {
	m.names++
	r := &modelRequest{Request: Request{
		RunID:    "r" + strconv.Itoa(m.names),
		Attempt:  1,
		Set:      rapid.SampledFrom([]string{"all", "all", "node1", "adapterA"}).Draw(t, "set"),
		Queue:    rapid.SampledFrom([]string{"", "shared"}).Draw(t, "queue"),
		Target:   "model",
		Depth:    rapid.IntRange(0, 6).Draw(t, "depth"),
		Wait:     time.Duration(rapid.IntRange(0, 6).Draw(t, "wait")) * 700 * time.Millisecond,
		FailFast: rapid.IntRange(0, 4).Draw(t, "fail fast") == 0,
	}}
	r.Match = matchSet(r.Set)
	m.genExclude(t, r)
	m.requests = append(m.requests, r)
	m.enter(t, r)
}

func (m *machine) genExclude(t *rapid.T, r *modelRequest) {
	r.Exclude = nil
	if rapid.IntRange(0, 3).Draw(t, "exclude") == 0 {
		r.Exclude = []Place{{genNodeID(t), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "adapter")}}
	}
}

// again is the next attempt of a request whose place went back.
func (m *machine) again(t *rapid.T) {
	free := slices.DeleteFunc(slices.Clone(m.requests), func(r *modelRequest) bool {
		return r.holder == nil || r.holder.state != mFree || m.calls[r] != nil
	})
	if len(free) == 0 {
		t.Skip("nobody to ask again")
	}
	r := rapid.SampledFrom(free).Draw(t, "request")
	r.Attempt++
	m.genExclude(t, r)
	m.enter(t, r)
}

func (m *machine) enter(t *rapid.T, r *modelRequest) {
	m.tick()
	now := time.Now()
	want := map[*modelRequest]execution.Code{}
	if code := m.entry(r, now); code != execution.CodeOK {
		want[r] = code
	} else {
		m.waiters = append(m.waiters, &modelWaiter{r, now, now.Add(r.Wait - r.waited)})
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &call{cancel, make(chan outcome, 1)}
	m.calls[r] = c
	go func() {
		g, err := m.s.Acquire(ctx, &r.Request)
		c.done <- outcome{g, err}
	}()
	m.settle(t, want)
}

// cancel is a caller that leaves while it waits. CA-04.
func (m *machine) cancel(t *rapid.T) {
	if len(m.waiters) == 0 {
		t.Skip("nobody waits")
	}
	w := rapid.SampledFrom(m.waiters).Draw(t, "waiter")
	m.tick()
	m.leave(w, time.Now())
	m.calls[w.modelRequest].cancel(errGone)
	m.settle(t, map[*modelRequest]execution.Code{w.modelRequest: execution.CodeClientGone})
}

func (m *machine) genGranted(t *rapid.T) *modelHolder {
	granted := slices.DeleteFunc(slices.Clone(m.requests), func(r *modelRequest) bool { return r.holder == nil })
	if len(granted) == 0 {
		t.Skip("nobody was granted")
	}
	return rapid.SampledFrom(granted).Draw(t, "grant").holder
}

// lost says that the place can't be sent to any more.
func (m *machine) lost(h *modelHolder) bool {
	c := m.conn(h.conn)
	return c == nil || m.current(h.conn.node) != c || c.adapter(h.adapter) == nil
}

func (m *machine) sent(t *rapid.T) {
	h := m.genGranted(t)
	m.tick()
	want := false
	switch {
	case h.state != mUnsent:
		m.ignored.Sent++
	case m.lost(h):
		m.free(h)
	default:
		h.state, want = mSent, true
	}
	m.answer(t, want, h.grant.Sent())
}

func (m *machine) release(t *rapid.T) {
	h := m.genGranted(t)
	m.tick()
	want := h.state == mUnsent
	if want {
		m.free(h)
	} else {
		m.ignored.Release++
	}
	m.answer(t, want, h.grant.Release())
}

func (m *machine) modelRejected(h *modelHolder) bool {
	if h.state != mSent && h.state != mDecided {
		m.ignored.Rejected++
		return false
	}
	m.free(h)
	return true
}

func (m *machine) rejected(t *rapid.T) {
	h := m.genGranted(t)
	m.tick()
	m.answer(t, m.modelRejected(h), h.grant.Rejected())
}

func (m *machine) rejectedBusy(t *rapid.T) {
	h := m.genGranted(t)
	m.tick()
	want := m.modelRejected(h)
	if want && !m.lost(h) {
		m.conn(h.conn).busy[h.adapter] = time.Now().Add(time.Second)
	}
	m.answer(t, want, h.grant.RejectedBusy())
}

func (m *machine) decided(t *rapid.T) {
	h := m.genGranted(t)
	m.tick()
	want := true
	switch h.state {
	case mUnsent:
		m.free(h)
	case mSent:
		h.state, h.confirmAt = mDecided, time.Now().Add(DefaultConfirmLimit)
	case mDecided:
		m.ignored.Decided++
		want = false
	default:
		want = false
	}
	m.answer(t, want, h.grant.Decided())
}

// ended is a RunEnded, mostly of somebody who holds, now and then of another attempt, generation or run.
func (m *machine) ended(t *rapid.T) {
	id, run, attempt := m.genConn(t, 0), "nobody", uint32(1)
	if len(m.holders) > 0 {
		h := rapid.SampledFrom(m.holders).Draw(t, "holder")
		id, run, attempt = h.conn, h.runID, h.attempt
	}
	switch rapid.IntRange(0, 9).Draw(t, "twist") {
	case 0:
		attempt++
	case 1:
		id.generation++
	}
	m.tick()
	want := false
	for _, h := range slices.Clone(m.holders) {
		if h.conn == id && h.runID == run && h.attempt == attempt && h.state != mUnsent {
			m.free(h)
			delete(m.conn(id).busy, h.adapter)
			want = true
		}
	}
	if !want {
		m.ignored.Ended++
	}
	m.answer(t, want, m.s.Ended(id.node, id.generation, run, attempt))
}

func (m *machine) answer(t *rapid.T, want, got bool) {
	if got != want {
		t.Fatalf("answered %v, want %v", got, want)
	}
	m.settle(t, nil)
}

func (m *machine) fence(t *rapid.T) {
	id := m.genConn(t, -1, -1, 0, 1)
	m.tick()
	m.model.fence(id)
	gone := m.hopeless(time.Now())
	m.s.Fence(id.node, id.generation)
	m.settle(t, m.expect(gone, execution.CodeNoNode))
}

func (m *machine) adopt(t *rapid.T) {
	id := m.genConn(t, -1, 0, 0, 1)
	var runs []Adopted
	for range rapid.IntRange(0, 2).Draw(t, "runs") {
		m.names++
		name := rapid.SampledFrom([]string{"a", "b", "x"}).Draw(t, "adapter")
		runs = append(runs, Adopted{"b" + strconv.Itoa(m.names), 1, name})
	}
	for _, h := range m.holders { // the report also names what this connection holds already
		if h.conn == id && h.state != mUnsent {
			runs = append(runs, Adopted{h.runID, h.attempt, h.adapter})
		}
	}
	m.tick()
	if m.admit(id) != nil {
		for _, a := range runs {
			if m.holder(id, a.RunID) == nil {
				m.holders = append(m.holders, &modelHolder{conn: id, adapter: a.Adapter, runID: a.RunID,
					attempt: a.Attempt, state: mAdopted})
			}
		}
	}
	gone := m.hopeless(time.Now())
	m.s.Adopt(id.node, id.generation, runs)
	m.settle(t, m.expect(gone, execution.CodeNoNode))
}

func (m *machine) saturated(t *rapid.T) {
	id := m.genConn(t, -1, 0, 0, 0)
	name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "adapter")
	m.tick()
	if c := m.conn(id); c != nil && m.current(id.node) == c && c.adapter(name) != nil {
		c.busy[name] = time.Now().Add(time.Second)
	} else {
		m.ignored.Stale++
	}
	m.s.Saturated(Place{id.node, name}, id.generation)
	m.settle(t, nil)
}

func (m *machine) drain(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "drain") > 0 {
		t.Skip("not yet")
	}
	m.tick()
	m.draining = true
	gone := slices.Clone(m.waiters)
	for _, w := range gone {
		m.leave(w, time.Now())
	}
	m.s.Drain()
	m.settle(t, m.expect(gone, execution.CodeEdgeDraining))
}

// advance lets time pass, from one timer of the model to the next.
func (m *machine) advance(t *rapid.T) {
	ms := rapid.SampledFrom([]int{100, 500, 1000, 5000, 90000}).Draw(t, "ms")
	end := time.Now().Add(time.Duration(ms) * time.Millisecond)
	for {
		at, ok := m.next(time.Now())
		if !ok || at.After(end) {
			break
		}
		time.Sleep(time.Until(at))
		want := map[*modelRequest]execution.Code{}
		for _, w := range slices.Clone(m.waiters) {
			if w.deadline.Equal(at) {
				want[w.modelRequest] = execution.CodeQueueTimeout
				if len(m.candidates(w.modelRequest, at)) == 0 {
					want[w.modelRequest] = execution.CodeNoNode
				}
				m.leave(w, at)
			}
		}
		m.confirm(at)
		m.settle(t, want)
	}
	time.Sleep(time.Until(end))
	m.settle(t, nil)
}

func (m *machine) expect(gone []*modelWaiter, code execution.Code) map[*modelRequest]execution.Code {
	want := map[*modelRequest]execution.Code{}
	for _, w := range gone {
		want[w.modelRequest] = code
	}
	return want
}
