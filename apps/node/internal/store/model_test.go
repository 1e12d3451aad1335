package store

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"iop/packages/go/execution"
)

// model is what a journal must be, without queue, batches or file: rows that change at once, and rows as the last
// commit left them.
type model struct {
	rows      map[int64]Row
	committed map[int64]Row
	entries   map[int64]*Entry // of this process
	nextID    int64
	failing   bool
	clock     time.Time
}

func (m *model) change(id int64, f func(*Row)) {
	row := m.rows[id]
	f(&row)
	m.rows[id] = row
}

// sorted returns rows as List does.
func sorted(rows map[int64]Row) []Row {
	return slices.SortedFunc(maps.Values(rows), func(a, b Row) int { return cmp.Compare(b.ID, a.ID) })
}

// unreported returns the ids of what an edge must be told.
func (m *model) unreported() []int64 {
	var ids []int64
	for id, row := range m.rows {
		if row.Background && !row.Reported && row.Status != StatusRunning {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Whatever is begun, changed, ended and reported in whatever order, beside commits, failures and crashes: after a
// commit the file has exactly the rows, after a crash exactly those of the last commit, swept; and the edge is told
// exactly of the background runs that ended and that it hasn't acknowledged.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := memoryDir(t)
		defer os.RemoveAll(dir)
		m := &model{rows: map[int64]Row{}, committed: map[int64]Row{}, nextID: 1, clock: time.UnixMilli(1_800_000_000_000)}
		s := &subject{dir: dir, m: m}
		s.open(t)
		defer func() { _ = s.j.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"begin":  s.begin,
			"update": s.update,
			"end":    s.end,
			"report": s.report,
			"commit": s.commit,
			"fail":   s.fail,
			"crash":  s.crash,
			"close":  s.restart,
			"":       s.check,
		})
	})
}

// subject is the real journal beside the model.
type subject struct {
	dir string
	m   *model
	j   *Journal
	w   *writer
}

func (s *subject) open(t *rapid.T) {
	j, err := Open(context.Background(), Config{Dir: s.dir, Now: func() time.Time { return s.m.clock }})
	if err != nil {
		t.Fatal(err)
	}
	s.j, s.w, s.m.failing, s.m.entries = j, &writer{j: j}, false, map[int64]*Entry{}
}

func (s *subject) tick() { s.m.clock = s.m.clock.Add(time.Second) }

func (s *subject) begin(t *rapid.T) {
	s.tick()
	x := tunnel(runName(int(s.m.nextID)))
	x.Background = rapid.Bool().Draw(t, "background")
	e := s.j.Begin(x)
	x.Created = s.m.clock
	s.m.entries[s.m.nextID] = e
	s.m.rows[s.m.nextID] = Row{ID: s.m.nextID, Execution: x, Outcome: Outcome{Status: StatusRunning}}
	s.m.nextID++
}

// any draws an execution of this process.
func (s *subject) any(t *rapid.T) int64 {
	ids := slices.Sorted(maps.Keys(s.m.entries))
	if len(ids) == 0 {
		t.Skip("nothing runs")
	}
	return rapid.SampledFrom(ids).Draw(t, "id")
}

func (s *subject) update(t *rapid.T) {
	id := s.any(t)
	n := rapid.Int64Range(1, 1000).Draw(t, "bytes")
	s.m.entries[id].Update(Progress{BytesOut: n})
	if s.m.rows[id].Status == StatusRunning {
		s.m.change(id, func(r *Row) { r.BytesOut = n })
	}
}

func (s *subject) end(t *rapid.T) {
	s.tick()
	id := s.any(t)
	status := StatusOf(rapid.SampledFrom([]execution.Status{execution.StatusComplete, execution.StatusError,
		execution.StatusCancelled, execution.StatusAbandoned}).Draw(t, "status"))
	s.m.entries[id].End(Outcome{Progress: Progress{Usage: execution.Usage{Output: &id}}, Status: status, Code: execution.CodeDeadline})
	if s.m.rows[id].Status == StatusRunning {
		s.m.change(id, func(r *Row) {
			r.Status, r.Code, r.Ended, r.Usage.Output = status, execution.CodeDeadline, s.m.clock, &id
		})
	}
}

func (s *subject) report(t *rapid.T) {
	ids := s.m.unreported()
	if len(ids) == 0 {
		t.Skip("nothing to report")
	}
	id := rapid.SampledFrom(ids).Draw(t, "id")
	s.j.Reported("edge:7443", runName(int(id)))
	s.m.change(id, func(r *Row) { r.Reported = true })
}

func (s *subject) commit(t *rapid.T) {
	err := s.w.drain()
	if (err != nil) != (s.m.failing && s.j.Health().Queued > 0) {
		t.Fatalf("drain: %v; failing: %v", err, s.m.failing)
	}
	if !s.m.failing {
		s.m.committed = maps.Clone(s.m.rows)
	}
}

// fail lets every write fail from now on, or heals.
func (s *subject) fail(t *rapid.T) {
	s.m.failing = !s.m.failing
	pragma := map[bool]string{true: `PRAGMA query_only = ON`, false: `PRAGMA query_only = OFF`}[s.m.failing]
	if _, err := s.j.file.db.Exec(pragma); err != nil {
		t.Fatal(err)
	}
}

func (s *subject) crash(t *rapid.T) {
	(&rig{Journal: s.j}).crash()
	s.m.rows = s.m.committed
	s.reopen(t)
}

func (s *subject) restart(t *rapid.T) {
	if err := s.j.Close(); err != nil {
		t.Fatal(err)
	}
	if s.m.failing {
		s.m.rows = s.m.committed
	}
	s.reopen(t)
}

func (s *subject) reopen(t *rapid.T) {
	s.tick()
	s.open(t)
	s.m.nextID = 1
	for id, row := range s.m.rows {
		s.m.nextID = max(s.m.nextID, id+1)
		if row.Status == StatusRunning {
			s.m.change(id, func(r *Row) { r.Status, r.Ended = StatusInterrupted, s.m.clock })
		}
	}
	s.m.committed = maps.Clone(s.m.rows)
}

func (s *subject) check(t *rapid.T) {
	rows, err := s.j.List(context.Background(), Query{Limit: MaxLimit})
	if err != nil {
		t.Fatal(err)
	}
	same(t, rows, nilIfEmpty(sorted(s.m.committed)))
	var told []int64
	for _, row := range s.j.Unreported("edge:7443") {
		same(t, []Row{row}, []Row{s.m.rows[row.ID]})
		told = append(told, row.ID)
	}
	slices.Sort(told)
	if want := s.m.unreported(); !slices.Equal(told, want) {
		t.Fatalf("unreported: %v, want %v", told, want)
	}
	if s.j.file.rows != int64(len(s.m.committed)) {
		t.Fatalf("the journal counts %d rows, want %d", s.j.file.rows, len(s.m.committed))
	}
	if t.Failed() {
		t.FailNow()
	}
}

func nilIfEmpty(rows []Row) []Row {
	if len(rows) == 0 {
		return nil
	}
	return rows
}

// The queue's own rules, at a size at which every rule is met: it never holds more than its limit, holds no entry
// twice, drops what is cheapest, and counts exactly what doesn't come again.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := queue{limit: 5}
		var live []*Entry
		var taken []*Entry
		lost := uint64(0)
		queued := func() (n int, cheapest class) {
			cheapest = queuedUpdate
			for _, e := range live {
				if e.class != unqueued {
					n++
					cheapest = min(cheapest, e.class)
				}
			}
			return n, cheapest
		}
		put := func(e *Entry) {
			n, cheapest := queued()
			before := e.class
			if before == unqueued && n == q.limit {
				if cheapest = min(cheapest, e.classify()); cheapest != queuedBegin {
					lost++
				}
			}
			q.put(e)
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				e := &Entry{row: Row{Outcome: Outcome{Status: StatusRunning}}}
				live = append(live, e)
				put(e)
			},
			"end": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip()
				}
				e := rapid.SampledFrom(live).Draw(t, "entry")
				e.row.Status = StatusComplete
				put(e)
			},
			"take": func(t *rapid.T) {
				if len(taken) > 0 {
					t.Skip()
				}
				taken = q.take(nil, rapid.IntRange(1, 6).Draw(t, "n"))
				if !slices.IsSortedFunc(taken, func(a, b *Entry) int { return cmp.Compare(b.classify(), a.classify()) }) {
					t.Fatal("the costliest don't come first")
				}
			},
			"written": func(t *rapid.T) {
				for _, e := range taken {
					e.stored = true
					if e.class == queuedEnd {
						q.put(e)
					}
				}
				taken = nil
			},
			"failed": func(t *rapid.T) {
				q.restore(taken)
				taken, lost = nil, q.lost // how many of them fit depends on what came meanwhile
			},
			"": func(t *rapid.T) {
				n, _ := queued()
				if n != q.n || n > q.limit {
					t.Fatalf("%d entries are queued, the queue counts %d of at most %d", n, q.n, q.limit)
				}
				if q.lost != lost {
					t.Fatalf("%d lost, want %d", q.lost, lost)
				}
				for c, l := range q.lists {
					var back *Entry
					for e := l.first; e != nil; back, e = e, e.next {
						if e.class != class(c) || e.prev != back || class(c) != e.classify() {
							t.Fatalf("list %d is broken", c)
						}
						n--
					}
					if l.last != back {
						t.Fatalf("list %d ends wrong", c)
					}
				}
				if n != 0 {
					t.Fatalf("%d entries are queued in no list", n)
				}
			},
		})
	})
}
