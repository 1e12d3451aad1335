package store

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"iop/packages/go/execution"
)

func TestRowComesBackWhole(t *testing.T) {
	dir := t.TempDir()
	r := start(t, Config{Dir: dir})
	created := time.Now().Truncate(time.Millisecond)
	x := background("run-1")
	x.Created, x.Generation = created, 1<<63+5
	e := r.Begin(x)
	e.Update(Progress{Started: created.Add(time.Second), Usage: execution.Usage{Input: number(0)}, BytesIn: 10})
	e.Update(Progress{BytesOut: 20})
	e.End(Outcome{Progress: Progress{Usage: execution.Usage{Output: number(7)}, BytesOut: 30},
		Status: StatusCancelled, Code: execution.CodeNodeLost, Ended: created.Add(time.Minute)})
	r.flush(t)
	want := []Row{{ID: 1, Execution: x, Outcome: Outcome{
		Progress: Progress{Started: created.Add(time.Second), Usage: execution.Usage{Input: number(0), Output: number(7)}, BytesIn: 10, BytesOut: 30},
		Status:   StatusCancelled, Code: execution.CodeNodeLost, Ended: created.Add(time.Minute),
	}}}
	same(t, r.rows(t, Query{}), want)
	r.close(t)
	same(t, start(t, Config{Dir: dir}).rows(t, Query{}), want)
}

// A run that begins and ends inside one batch is a single write; one that lasts longer is two, however often it changed.
func TestChangesAreMerged(t *testing.T) {
	r := open(t, Config{})
	w := &writer{j: r.Journal}
	short, longer := r.Begin(tunnel("short")), r.Begin(tunnel("longer"))
	short.End(complete())
	for range 50 {
		longer.Update(Progress{BytesOut: 1})
	}
	if err := w.drain(); err != nil || r.Health().Written != 2 {
		t.Fatalf("%d writes, %v; want one a run", r.Health().Written, err)
	}
	for range 50 {
		longer.Update(Progress{BytesOut: 2})
	}
	longer.End(complete())
	if err := w.drain(); err != nil || r.Health().Written != 3 {
		t.Fatalf("%d writes, %v; want 3", r.Health().Written, err)
	}
}

func TestFirstEndStands(t *testing.T) {
	r := start(t, Config{})
	e := r.Begin(tunnel("run"))
	e.End(Outcome{Status: StatusAbandoned, Code: execution.CodeCancelled})
	e.End(complete())
	e.Update(Progress{BytesOut: 5})
	r.Begin(tunnel("mistake")).End(Outcome{Status: StatusRunning})
	r.flush(t)
	rows := r.rows(t, Query{})
	if len(rows) != 2 || rows[1].Status != StatusAbandoned || rows[1].BytesOut != 0 {
		t.Errorf("%+v, want one row that was abandoned", rows)
	}
	if rows[0].Status != StatusError || rows[0].Code != execution.CodeInternal {
		t.Errorf("an end that is none became %v, %v", rows[0].Status, rows[0].Code)
	}
}

// A nil journal and a closed one take everything and keep nothing.
func TestNobodyNeedsAJournal(t *testing.T) {
	var none *Journal
	e := none.Begin(tunnel("run"))
	e.Update(Progress{})
	e.End(complete())
	none.Reported("edge", "run")
	if err := none.Flush(t.Context()); err != nil || none.Unreported("edge") != nil || none.Close() != nil || none.Health() != (Health{}) {
		t.Error("a nil journal isn't quiet")
	}
	r := start(t, Config{})
	running := r.Begin(background("run"))
	r.close(t)
	running.End(complete())
	r.Begin(tunnel("late")).End(complete())
	r.Reported("edge:7443", "run")
	if h := r.Health(); h.Queued != 0 {
		t.Errorf("a closed journal keeps %d rows", h.Queued)
	}
	if _, err := r.List(t.Context(), Query{}); err == nil {
		t.Error("a closed journal lists rows")
	}
	if r.Flush(t.Context()) == nil || r.Run(t.Context()) != nil || r.Close() != nil {
		t.Error("a closed journal can't be flushed, but run in vain and closed again")
	}
}

// What is recorded before Run, after its end, and between the two is written.
func TestCloseWritesWhatIsLeft(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Dir: dir})
	r.Begin(tunnel("before")).End(complete())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.Begin(tunnel("while")).End(complete())
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	r.Begin(tunnel("after")).End(complete())
	r.close(t)
	if rows := start(t, Config{Dir: dir}).rows(t, Query{Status: StatusComplete}); len(rows) != 3 {
		t.Errorf("%d rows, want 3", len(rows))
	}
}

func TestList(t *testing.T) {
	start0 := time.Now().Truncate(time.Millisecond).Add(-time.Minute)
	r := start(t, Config{})
	for i := range 150 {
		x := tunnel(runName(i))
		x.Created = start0.Add(time.Duration(i) * time.Second)
		e := r.Begin(x)
		if i%3 == 0 {
			e.End(complete())
		}
	}
	r.flush(t)
	for _, tt := range []struct {
		query Query
		n     int
		first string
	}{
		{Query{Limit: -1}, defaultLimit, runName(149)},
		{Query{Limit: 7}, 7, runName(149)},
		{Query{Limit: MaxLimit + 1}, 150, runName(149)},
		{Query{Limit: 1000, Status: StatusComplete}, 50, runName(147)},
		{Query{Limit: 1000, Status: StatusError}, 0, ""},
		{Query{Limit: 1000, Since: start0.Add(140 * time.Second)}, 10, runName(149)},
		{Query{Limit: 2, Status: StatusRunning, Since: start0.Add(140 * time.Second)}, 2, runName(149)},
	} {
		rows, err := r.List(t.Context(), tt.query)
		if err != nil || len(rows) != tt.n || tt.n > 0 && rows[0].RunID != tt.first {
			t.Errorf("%+v: %d rows, %v", tt.query, len(rows), err)
		}
		if !slices.IsSortedFunc(rows, func(a, b Row) int { return int(b.ID - a.ID) }) {
			t.Errorf("%+v: not the latest first", tt.query)
		}
	}
	for _, s := range Statuses() {
		if s.final() == (s == StatusRunning) {
			t.Errorf("%s: final is %v", s, s.final())
		}
	}
}

// The ends of background runs wait for their edge's word, across restarts; those of other runs, of other edges and of
// runs still running don't.
func TestUnreported(t *testing.T) {
	dir := t.TempDir()
	r := start(t, Config{Dir: dir})
	r.Begin(tunnel("foreground")).End(complete())
	elsewhere := background("elsewhere")
	elsewhere.Edge = "other:7443"
	r.Begin(elsewhere).End(complete())
	first, second, running := r.Begin(background("first")), r.Begin(background("second")), r.Begin(background("running"))
	second.End(complete())
	first.End(Outcome{Status: StatusError, Code: execution.CodeUpstreamError})
	if got := runIDs(r.Unreported("edge:7443")); !slices.Equal(got, []string{"second", "first"}) {
		t.Errorf("unreported: %v", got)
	}
	r.Reported("edge:7443", "first", "unknown", "elsewhere", "foreground", "running")
	r.Reported("edge:7443", "first")
	if got := runIDs(r.Unreported("edge:7443")); !slices.Equal(got, []string{"second"}) {
		t.Errorf("unreported: %v", got)
	}
	r.flush(t)
	_ = running
	r.close(t)

	r = start(t, Config{Dir: dir})
	rows := r.Unreported("edge:7443")
	if got := runIDs(rows); !slices.Equal(got, []string{"second", "running"}) || rows[1].Status != StatusInterrupted {
		t.Errorf("unreported after a restart: %+v", rows)
	}
	r.Reported("edge:7443", "second", "running")
	r.Reported("other:7443", "elsewhere")
	r.close(t)
	r = start(t, Config{Dir: dir})
	if got := append(r.Unreported("edge:7443"), r.Unreported("other:7443")...); len(got) > 0 {
		t.Errorf("reported runs are to be reported: %v", runIDs(got))
	}
	for _, row := range r.rows(t, Query{}) {
		if row.Reported != row.Background {
			t.Errorf("%s: reported is %v", row.RunID, row.Reported)
		}
	}
}

// An edge that never acknowledges costs a bounded number of rows; a run that is done again counts once.
func TestUnreportedIsBounded(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Dir: dir})
	w := &writer{j: r.Journal}
	for i := range maxUnreported + 50 {
		r.Begin(background(runName(i))).End(complete())
		if i%1000 == 0 {
			if err := w.drain(); err != nil {
				t.Fatal(err)
			}
		}
	}
	again := r.Begin(background(runName(1000)))
	again.End(Outcome{Status: StatusError, Code: execution.CodeInternal})
	rows := r.Unreported("edge:7443")
	if len(rows) != maxUnreported || rows[0].RunID != runName(50) || rows[len(rows)-1].Status != StatusError {
		t.Fatalf("%d unreported rows from %s to %+v", len(rows), rows[0].RunID, rows[len(rows)-1])
	}
	r.close(t)
	r = open(t, Config{Dir: dir})
	if reread := r.Unreported("edge:7443"); !slices.Equal(runIDs(reread), runIDs(rows)) {
		t.Errorf("after a restart %d rows are unreported, want the same %d", len(reread), len(rows))
	}
}

func runIDs(rows []Row) []string {
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.RunID)
	}
	return ids
}

// CR-06, R11: there is no place for a prompt, an output, a header, an error text or a secret: not in a row, not in the file.
func TestRowHasNoPlaceForContent(t *testing.T) {
	allowed := strings.Fields(`ID Edge RunID Attempt Generation Kind Adapter Target SessionID Background Created Started Usage BytesIn
		BytesOut Status Code Ended Reported`)
	var fields []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Row]()) {
		if !f.Anonymous {
			fields = append(fields, f.Name)
		}
	}
	slices.Sort(fields)
	slices.Sort(allowed)
	if !slices.Equal(fields, allowed) {
		t.Errorf("a row has %v, want %v", fields, allowed)
	}
	r := open(t, Config{})
	found, err := r.file.db.Query(`SELECT name FROM pragma_table_info('executions') ORDER BY cid`)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	var names []string
	for found.Next() {
		var name string
		if err := found.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if got, want := strings.Join(names, ","), strings.Join(strings.Fields(columns), ""); got != want {
		t.Errorf("the table has %s, the statements name %s", got, want)
	}
}

// Names come from callers: a long one is cut, a broken one mended, so that a full queue and the file stay small.
func TestLongNamesAreCut(t *testing.T) {
	r := start(t, Config{})
	x := tunnel("run")
	x.Target = strings.Repeat("é", 40_000)
	x.SessionID = "x\xff" + strings.Repeat("y", 10_000)
	r.Begin(x).End(complete())
	r.flush(t)
	row := r.rows(t, Query{})[0]
	if row.Target != strings.Repeat("é", maxText/2) {
		t.Errorf("target has %d bytes", len(row.Target))
	}
	if len(row.SessionID) != maxText || !utf8.ValidString(row.SessionID) || !strings.HasPrefix(row.SessionID, "x\uFFFDyy") {
		t.Errorf("session id has %d bytes: %.20q", len(row.SessionID), row.SessionID)
	}
}

func TestRunOnce(t *testing.T) {
	r := start(t, Config{})
	r.flush(t)
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a second Run: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&Journal{flushes: make(chan chan error), stopped: make(chan struct{})}).Flush(ctx); err == nil {
		t.Error("Flush of a journal that nobody runs doesn't end with its context")
	}
}

// Retention by count is exact as rows come, and leaves alone what runs and what an edge has yet to acknowledge.
func TestRetentionByCount(t *testing.T) {
	r := open(t, Config{MaxRows: 100})
	w := &writer{j: r.Journal}
	running := r.Begin(tunnel("running"))
	r.Begin(background("unreported")).End(complete())
	for i := range 1000 {
		r.Begin(tunnel(runName(i))).End(complete())
		if i%37 == 0 {
			if err := w.drain(); err != nil {
				t.Fatal(err)
			}
			if n := len(r.rows(t, Query{})); n > 100 || int64(n) != r.file.rows {
				t.Fatalf("%d rows, thought to be %d, want 100 at most", n, r.file.rows)
			}
		}
	}
	if err := w.drain(); err != nil {
		t.Fatal(err)
	}
	rows := r.rows(t, Query{})
	if len(rows) != 100 || rows[0].RunID != runName(999) || rows[99].RunID != "running" || rows[98].RunID != "unreported" {
		t.Errorf("%d rows from %s to %s", len(rows), rows[0].RunID, rows[99].RunID)
	}
	running.End(complete())
	r.Reported("edge:7443", "unreported")
	if err := w.drain(); err != nil {
		t.Fatal(err)
	}
	if rows := r.rows(t, Query{}); len(rows) != 100 {
		t.Errorf("%d rows", len(rows))
	}
}

// A limit that was lowered is reached in steps, without a write having to come.
func TestRetentionInSteps(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Dir: dir})
	const rows = 3*pruneStep + 20
	for i := range rows {
		r.Begin(tunnel(runName(i))).End(complete())
	}
	r.close(t)
	r = open(t, Config{Dir: dir, MaxRows: 10})
	w := &writer{j: r.Journal}
	for want := rows; want > 10; {
		now := time.Now()
		if err := w.prune(now); err != nil {
			t.Fatal(err)
		}
		want = max(10, want-pruneStep)
		if got := len(r.rows(t, Query{})); got != want {
			t.Fatalf("%d rows, want %d", got, want)
		}
		if soon := w.pruneAt.Sub(now) < time.Second; soon != (want > 10) {
			t.Errorf("with %d rows the next step is due in %v", want, w.pruneAt.Sub(now))
		}
	}
}

func TestRetentionByAge(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	r := open(t, Config{MaxAge: time.Hour, Now: func() time.Time { return now }})
	w := &writer{j: r.Journal}
	for i := range 200 { // the oldest is 200 minutes old
		x := tunnel(runName(i))
		x.Background = i == 0
		x.Created = now.Add(time.Duration(i-200) * time.Minute)
		if e := r.Begin(x); i != 3 {
			e.End(complete())
		}
	}
	if err := w.drain(); err != nil {
		t.Fatal(err)
	}
	if err := w.prune(now); err != nil {
		t.Fatal(err)
	}
	rows := r.rows(t, Query{})
	if len(rows) != 61 || rows[60].RunID != runName(3) || rows[59].RunID != runName(140) || r.file.rows != 61 {
		t.Errorf("%d rows (thought %d) down to %s, %s", len(rows), r.file.rows, rows[len(rows)-2].RunID, rows[len(rows)-1].RunID)
	}
	if left := r.Unreported("edge:7443"); len(left) > 0 {
		t.Errorf("a row that was deleted is still to be reported: %v", runIDs(left))
	}
	if err := w.prune(now); err != nil || len(r.rows(t, Query{})) != 61 {
		t.Errorf("a second pass deletes more: %v", err)
	}
}

// What is kept can be changed while the journal runs, and back to what was configured.
func TestRetain(t *testing.T) {
	now := time.Now()
	r := open(t, Config{MaxRows: 50, Now: func() time.Time { return now }})
	w := &writer{j: r.Journal}
	for _, tt := range []struct {
		age  time.Duration
		rows int
		want int
	}{{0, 100, 100}, {0, 10, 10}, {0, 0, 50}, {time.Nanosecond, 0, 0}} {
		r.Retain(tt.age, tt.rows)
		for i := range 200 {
			r.Begin(tunnel(runName(i))).End(complete())
		}
		if err := w.drain(); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Millisecond) // as exactly as rows know their age
		if err := w.prune(now); err != nil {
			t.Fatal(err)
		}
		if got := len(r.rows(t, Query{})); got != tt.want {
			t.Errorf("Retain(%v, %d): %d rows, want %d", tt.age, tt.rows, got, tt.want)
		}
	}
	var none *Journal
	none.Retain(time.Hour, 1)
}

// When the file is behind for long, memory is bounded, and what is dropped first is what comes again anyway.
func TestFullQueue(t *testing.T) {
	r := open(t, Config{})
	w := &writer{j: r.Journal}
	old := r.Begin(tunnel("old"))
	if err := w.drain(); err != nil {
		t.Fatal(err)
	}
	release := hold(t, dbPath(r.cfg.Dir))
	defer release()
	old.End(complete())
	running := r.Begin(tunnel("running"))
	for i := range maxQueued + 500 {
		r.Begin(tunnel(runName(i))).End(complete())
		if h := r.Health(); h.Queued > maxQueued {
			t.Fatalf("%d rows in the queue", h.Queued)
		}
	}
	// old's end stands in the file's way of knowing better; running was dropped, which is no loss; the rest is.
	if h := r.Health(); h.Queued != maxQueued || h.Lost != 501 {
		t.Errorf("%+v, want a full queue and 501 lost rows", h)
	}
	running.End(complete())
	release()
	if err := w.drain(); err != nil {
		t.Fatal(err)
	}
	rows := r.rows(t, Query{Limit: MaxLimit})
	if got := statuses(rows); len(rows) != maxQueued || got[StatusComplete] != maxQueued {
		t.Errorf("%v, want %d complete", got, maxQueued)
	}
	for _, name := range []string{"old", "running", runName(maxQueued + 499)} {
		if !slices.Contains(runIDs(rows), name) {
			t.Errorf("%s is lost", name)
		}
	}
	if t.Failed() {
		t.Log(fmt.Sprint(runIDs(rows)[maxQueued-3:]))
	}
}
