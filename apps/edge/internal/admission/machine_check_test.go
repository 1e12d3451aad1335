package admission

import (
	"errors"
	"slices"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"iop/packages/go/execution"
)

// settle waits until every goroutine stands still, then checks what the Acquires returned: the wanted refusals, and
// grants of which each went to the earliest who could take it, to one of the best candidates.
func (m *machine) settle(t *rapid.T, want map[*modelRequest]execution.Code) {
	synctest.Wait()
	var granted []*modelWaiter
	places := map[*modelRequest]*Grant{}
	for r, c := range m.calls {
		select {
		case o := <-c.done:
			delete(m.calls, r)
			if o.err != nil {
				m.checkRefusal(t, r, o, want)
				continue
			}
			i := slices.IndexFunc(m.waiters, func(w *modelWaiter) bool { return w.modelRequest == r })
			if i < 0 {
				t.Fatalf("%s was granted %v, want %v", r.RunID, o.grant.Place, want[r])
			}
			granted, places[r] = append(granted, m.waiters[i]), o.grant
		default:
		}
	}
	for r, code := range want {
		t.Fatalf("%s still waits or was granted, want %v", r.RunID, code)
	}
	slices.SortFunc(granted, func(a, b *modelWaiter) int { return int(a.number) - int(b.number) })
	for _, w := range granted {
		m.checkGrant(t, w, places[w.modelRequest])
	}
	for _, w := range m.waiters {
		if len(m.best(w.modelRequest, time.Now())) > 0 {
			t.Fatalf("%s waits though a place is free", w.RunID)
		}
	}
}

func (m *machine) checkRefusal(t *rapid.T, r *modelRequest, o outcome, want map[*modelRequest]execution.Code) {
	code := execution.CodeClientGone
	if !errors.Is(o.err, errGone) {
		f := execution.AsFailure(o.err, execution.OriginEdge)
		code = f.Code
		if f.RetryAfter < time.Second || f.RetryAfter > 5*time.Minute {
			t.Fatalf("%s: retry after %v", r.RunID, f.RetryAfter)
		}
	}
	if o.grant != nil || code != want[r] {
		t.Fatalf("%s was refused with %v, want %v", r.RunID, o.err, want[r])
	}
	delete(want, r)
}

func (m *machine) checkGrant(t *rapid.T, w *modelWaiter, g *Grant) {
	now := time.Now()
	for _, o := range m.waiters {
		if o.number < w.number && len(m.best(o.modelRequest, now)) > 0 {
			t.Fatalf("%s (arrival %d) overtook %s (arrival %d)", w.RunID, w.number, o.RunID, o.number)
		}
	}
	id := connID{g.Node, g.Generation}
	options := m.best(w.modelRequest, now)
	if !slices.ContainsFunc(options, func(o option) bool { return o.conn.connID == id && o.adapter.Name == g.Adapter }) {
		t.Fatalf("%s was granted %+v, the best are %+v", w.RunID, g.Place, options)
	}
	m.leave(w, now)
	if g.Queued != w.waited {
		t.Fatalf("%s: queued %v, want %v", w.RunID, g.Queued, w.waited)
	}
	h := &modelHolder{conn: id, adapter: g.Adapter, runID: w.RunID, attempt: w.Attempt, state: mUnsent, grant: g}
	w.holder = h
	m.holders = append(m.holders, h)
	if c := m.conn(id); !c.busy[g.Adapter].IsZero() {
		c.busy[g.Adapter] = now.Add(time.Second)
	}
}

// compare holds the snapshot against the model. CP-07.
func (m *machine) compare(t *rapid.T) {
	snap := m.s.Snapshot()
	if snap.Queued != len(m.waiters) || snap.Draining != m.draining || snap.Ignored != m.ignored {
		t.Fatalf("snapshot %+v\nwant queued %d, draining %v, ignored %+v", snap, len(m.waiters), m.draining, m.ignored)
	}
	held := 0
	for _, p := range snap.Places {
		id := connID{p.Node, p.Generation}
		held += p.InFlight
		if want := m.inFlight(id, p.Adapter); p.InFlight != want {
			t.Fatalf("%+v in flight %d, want %d", p.Place, p.InFlight, want)
		}
		unconfirmed, adopted := 0, 0
		for _, h := range m.holders {
			if h.conn == id && h.adapter == p.Adapter {
				unconfirmed += boolRank(h.state == mDecided)
				adopted += boolRank(h.state == mAdopted)
			}
		}
		if p.Unconfirmed != unconfirmed || p.Adopted != adopted {
			t.Fatalf("%+v, want unconfirmed %d, adopted %d", p, unconfirmed, adopted)
		}
	}
	if held != len(m.holders) {
		t.Fatalf("%d holders in the snapshot, want %d", held, len(m.holders))
	}
	for _, s := range snap.Sets {
		if want := m.waiting(func(w *modelWaiter) bool { return w.Set == s.Set }); s.Queued != want {
			t.Fatalf("set %s: %d queued, want %d", s.Set, s.Queued, want)
		}
		r := &modelRequest{Request: Request{Set: s.Set}}
		if want := len(m.candidates(r, time.Now())); s.Candidates != want {
			t.Fatalf("set %s: %d candidates, want %d", s.Set, s.Candidates, want)
		}
	}
	var told []connID
	for len(m.told) > 0 {
		told = append(told, <-m.told)
	}
	if !slices.Equal(told, m.reported) {
		t.Fatalf("unconfirmed %v, want %v", told, m.reported)
	}
	m.reported = nil
}

// finish ends everything that is held: nothing may be left. I3.
func (m *machine) finish(t *rapid.T) {
	for len(m.waiters) > 0 {
		m.calls[m.waiters[0].modelRequest].cancel(errGone)
		r := m.waiters[0].modelRequest
		m.leave(m.waiters[0], time.Now())
		m.settle(t, map[*modelRequest]execution.Code{r: execution.CodeClientGone})
	}
	for len(m.holders) > 0 {
		h := m.holders[0]
		if h.state == mUnsent {
			h.grant.Release()
		} else if !m.s.Ended(h.conn.node, h.conn.generation, h.runID, h.attempt) {
			t.Fatalf("%s holds, but its end is unknown", h.runID)
		}
		m.free(h)
	}
	snap := m.s.Snapshot()
	for _, p := range snap.Places {
		if p.InFlight != 0 {
			t.Fatalf("%+v holds after all ended", p)
		}
	}
}
