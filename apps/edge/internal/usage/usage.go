// Package usage keeps the edge's ledger: how many requests and tokens each principal used, of which model, on which node,
// on which day (UTC). It holds counts and names, and nothing of what was said.
//
// It owns usage.db in the state directory and the day's totals in memory, by which budgets are judged. It must not decide
// who may ask for what (admission does), nor what a request cost (service does).
//
// A run is counted in memory at once, and on disk within a second. A disk that can't be written costs no request: what
// waits is kept and tried again, and said.
package usage

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// flushEvery is how long a count may be in memory only.
	flushEvery = time.Second
	// keepDays is how long a day stays in the ledger.
	keepDays = 400
	// maxPending bounds what waits for a disk that can't be written; beyond it models aren't told apart.
	maxPending = 10_000
	// others stands for models that weren't told apart.
	others = "(others)"
)

// Entry is one run that ended.
type Entry struct {
	At                               time.Time
	Principal, Model, Node           string
	Failed                           bool
	Input, Output, Cached, Reasoning int64 // tokens
	Estimated                        bool  // the provider told no counts
}

// Counts are sums over runs.
type Counts struct {
	Requests  int64
	Failed    int64 // of Requests
	Estimated int64 // of Requests: those whose tokens are an estimate
	Input     int64
	Output    int64
	Cached    int64 // of Input
	Reasoning int64 // of Output
}

func (c *Counts) add(o Counts) {
	c.Requests += o.Requests
	c.Failed += o.Failed
	c.Estimated += o.Estimated
	c.Input += o.Input
	c.Output += o.Output
	c.Cached += o.Cached
	c.Reasoning += o.Reasoning
}

// key names a row of the ledger.
type key struct{ day, principal, model, node string }

// Ledger is open from Open to Close. Its methods may be called concurrently.
type Ledger struct {
	db  *sql.DB
	log zerolog.Logger

	writing sync.Mutex // one flush at a time

	mu       sync.Mutex
	pending  map[key]Counts // not on disk yet
	day      string
	today    map[string]int64 // tokens of day, by principal
	failures uint64
	said     time.Time // when a failure was logged last
}

// Open opens the ledger in dir, making it if need be. A file that can't be understood is an error that names it.
func Open(dir string, log zerolog.Logger) (*Ledger, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state_dir %s can't be made: %w", dir, err)
	}
	path := filepath.Join(dir, "usage.db")
	db, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("usage ledger %s: %w; restore it, or move it away to begin a new one", path, err)
	}
	l := &Ledger{db: db, log: log, pending: map[key]Counts{}}
	if err := l.turn(dayOf(time.Now())); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("usage ledger %s: %w", path, err)
	}
	return l, nil
}

func dayOf(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// turn begins a day with what the ledger has of it.
func (l *Ledger) turn(day string) error {
	rows, err := l.db.Query(`SELECT principal, SUM(input + output) FROM usage WHERE day = ? GROUP BY principal`, day)
	if err != nil {
		return err
	}
	defer rows.Close()
	today := map[string]int64{}
	for rows.Next() {
		var principal string
		var tokens int64
		if err := rows.Scan(&principal, &tokens); err != nil {
			return err
		}
		today[principal] = tokens
	}
	l.day, l.today = day, today
	return rows.Err()
}

// Add counts a run. It never waits for the disk.
func (l *Ledger) Add(e Entry) {
	counts := Counts{Requests: 1, Input: max(e.Input, 0), Output: max(e.Output, 0), Cached: max(e.Cached, 0), Reasoning: max(e.Reasoning, 0)}
	if e.Failed {
		counts.Failed = 1
	}
	if e.Estimated {
		counts.Estimated = 1
	}
	k := key{dayOf(e.At), e.Principal, e.Model, e.Node}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.todayLocked(k.day)
	if k.day == l.day {
		l.today[e.Principal] += counts.Input + counts.Output
	}
	sum, known := l.pending[k]
	if !known && len(l.pending) >= maxPending {
		k.model, k.node = others, others
		sum = l.pending[k]
	}
	sum.add(counts)
	l.pending[k] = sum
}

// todayLocked begins a new day once it is there. Nothing of it can be on disk yet.
func (l *Ledger) todayLocked(day string) {
	if day > l.day {
		l.day, l.today = day, map[string]int64{}
	}
}

// Today returns how many tokens a principal has used on this day, running requests left out.
func (l *Ledger) Today(principal string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.todayLocked(dayOf(time.Now()))
	return l.today[principal]
}

// Failures returns how often the ledger couldn't be written.
func (l *Ledger) Failures() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures
}

// Run writes what was counted, until ctx ends.
func (l *Ledger) Run(ctx context.Context) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.flush()
		}
	}
}

// Close writes the rest and closes the file. There is nothing to close of nil.
func (l *Ledger) Close() error {
	if l == nil {
		return nil
	}
	err := l.flush()
	if cerr := l.db.Close(); err == nil {
		err = cerr
	}
	return err
}

// flush writes what waits, in one transaction. What couldn't be written waits on.
func (l *Ledger) flush() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	batch := l.pending
	l.pending = map[key]Counts{}
	l.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	err := l.write(batch)
	if err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, counts := range batch {
		counts.add(l.pending[k])
		l.pending[k] = counts
	}
	l.failures++
	if time.Since(l.said) > time.Minute {
		l.said = time.Now()
		l.log.Error().Err(err).Int("rows", len(l.pending)).Msg("usage ledger can't be written; what was counted is kept in memory and tried again")
	}
	return err
}

// Filter says which part of the ledger is asked for.
type Filter struct {
	From, To string   // days as 2026-01-31, both included; "" = no bound
	By       []string // what rows are told apart by: of principal, model, node and day; none = one row
}

// Row is a sum. What it isn't told apart by is "".
type Row struct {
	Day, Principal, Model, Node string
	Counts
}

// columns are what rows may be told apart by, in the order in which they are sorted.
var columns = [...]string{"day", "principal", "model", "node"}

// Columns returns what a [Filter] may name in By.
func Columns() []string { return columns[:] }

// Query sums up the ledger, what isn't on disk yet included. Its order is that of day, principal, model and node.
func (l *Ledger) Query(ctx context.Context, f Filter) ([]Row, error) {
	l.writing.Lock() // so that nothing is counted twice, or not at all
	defer l.writing.Unlock()
	l.mu.Lock()
	waiting := maps.Clone(l.pending)
	l.mu.Unlock()
	sums := map[key]Counts{}
	take := func(k key, c Counts) {
		if f.From != "" && k.day < f.From || f.To != "" && k.day > f.To {
			return
		}
		k = f.fold(k)
		sum := sums[k]
		sum.add(c)
		sums[k] = sum
	}
	if err := l.read(ctx, f, take); err != nil {
		return nil, err
	}
	for k, c := range waiting {
		take(k, c)
	}
	rows := make([]Row, 0, len(sums))
	for k, c := range sums {
		rows = append(rows, Row{k.day, k.principal, k.model, k.node, c})
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(a.Principal, b.Principal), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Node, b.Node))
	})
	return rows, nil
}

// fold forgets what rows aren't told apart by.
func (f *Filter) fold(k key) key {
	for i, of := range []*string{&k.day, &k.principal, &k.model, &k.node} {
		if !slices.Contains(f.By, columns[i]) {
			*of = ""
		}
	}
	return k
}
