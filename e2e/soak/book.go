package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// book is the account of a soak.
type book struct {
	seed    uint64
	options options

	mu       sync.Mutex
	warm     int // loads that are over: the first is the warming up
	asked    map[string]int
	outcomes map[string]int
	faults   map[string]int
	worst    map[string]slow
	wrong    []string // promises that were broken
	codes    map[string]int
	executed int
	settled  time.Duration // from the end of the load until nothing was held
}

// slow is the slowest request of a way.
type slow struct {
	took    time.Duration
	what    string
	outcome string
}

func newBook(o options) *book {
	return &book{seed: o.seed, options: o, asked: map[string]int{}, outcomes: map[string]int{}, faults: map[string]int{}, worst: map[string]slow{}, codes: map[string]int{}}
}

func (b *book) epoch() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.warm
}

func (b *book) nextEpoch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.warm++
}

// answered enters a request that has its outcome.
func (b *book) answered(a ask, outcome, wrong string, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[string(a.way)]++
	b.outcomes[outcome]++
	if took > b.worst[string(a.way)].took {
		b.worst[string(a.way)] = slow{took, a.String(), outcome}
	}
	if wrong != "" {
		b.wrong = append(b.wrong, fmt.Sprintf("%s (%s): %s", a.order.mark, a, wrong))
	}
}

func (b *book) struck(fault string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults[fault]++
}

// broken enters a promise that was broken.
func (b *book) broken(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, what)
	fmt.Fprintln(os.Stderr, "soak:", what)
}

// countExecutions looks whether a prompt was executed more than once: no caller ever asks the same twice.
func (b *book) countExecutions(ledger string) {
	text, err := os.ReadFile(ledger)
	if err != nil {
		b.broken(err.Error())
		return
	}
	times := map[string]int{}
	for line := range strings.Lines(string(text)) {
		mark := strings.TrimSpace(line)
		if times[mark]++; times[mark] == 2 {
			b.broken("prompt " + mark + " was executed twice")
		}
	}
	b.executed = len(times)
}

// verdict is nil when every promise was kept.
func (b *book) verdict() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.wrong) == 0 {
		return nil
	}
	return fmt.Errorf("seed %d: %d promises broken", b.seed, len(b.wrong))
}

// settle waits for everything to come to rest and compares it with what it was.
func (w *world) settle(ctx context.Context, b *book, before sizes) {
	from := time.Now()
	if err := w.configure(4); err != nil {
		b.broken(err.Error())
	}
	if err := w.rest(ctx, 3*time.Minute); err != nil {
		b.broken("at the end: " + err.Error())
	}
	b.settled = time.Since(from)
	for _, node := range w.nodes {
		n, err := w.executions(ctx, node, "running")
		if err != nil || n > 0 {
			b.broken(fmt.Sprintf("%s's record has %d rows that aren't final (%v)", node.name, n, err))
		}
	}
	if err := w.same(ctx, before); err != nil {
		b.broken(err.Error())
	}
	for _, p := range w.edge.processes() {
		ended := map[string]int{}
		for _, e := range p.Entries("run ended") {
			b.codes[e.Str("code")]++
			if id := e.Str("run_id"); id != "" {
				if ended[id]++; ended[id] == 2 {
					b.broken("run " + id + " ended twice")
				}
			}
		}
	}
	for _, m := range w.machines() {
		for _, p := range m.processes() {
			for _, sign := range []string{"panic", "fatal error", "DATA RACE"} {
				if strings.Contains(p.Log(), sign) {
					b.broken(fmt.Sprintf("%s's log has %q", m.name, sign))
				}
			}
		}
	}
}

const (
	// Pools and idle connections differ a little from one moment to another; what leaks does so hundreds of times.
	moreGoroutines  = 12
	moreDescriptors = 12
	moreMemory      = 96 << 20
)

// same compares the programs' sizes with those before. What is given back late gets a minute.
func (w *world) same(ctx context.Context, before sizes) error {
	return await(ctx, time.Minute, "everything is as small as it was", func() (err error) {
		if w.after, err = w.sizes(ctx); err != nil {
			return err
		}
		var grown []error
		for name, s := range w.after {
			was := before[name]
			if s.goroutines > was.goroutines+moreGoroutines || s.descriptors > was.descriptors+moreDescriptors || s.rss > was.rss+moreMemory {
				grown = append(grown, fmt.Errorf("%s grew from %+v to %+v", name, was, s))
			}
		}
		return errors.Join(grown...)
	})
}

// report is the account in Markdown.
func (b *book) report(took time.Duration, before, after sizes) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var t strings.Builder
	total := 0
	for _, n := range b.asked {
		total += n
	}
	fmt.Fprintf(&t, "Seed %d, %.0f minutes of load (%v in all), %d callers, at most %.0f requests/s, a fault every %v on average, %s.\n\n",
		b.seed, b.options.minutes, took.Round(time.Second), b.options.callers, b.options.rate, b.options.calm, time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(&t, "%d requests, %d prompts executed by a provider, %d promises broken. Nothing was held any more %v after the load.\n\n",
		total, b.executed, len(b.wrong), b.settled.Round(100*time.Millisecond))
	table(&t, "Requests", b.asked)
	table(&t, "What callers saw", b.outcomes)
	table(&t, "What the edge recorded", b.codes)
	table(&t, "Faults", b.faults)
	fmt.Fprintf(&t, "| Slowest | took | outcome | what |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(b.worst)) {
		s := b.worst[name]
		fmt.Fprintf(&t, "| %s | %v | %s | %s |\n", name, s.took.Round(10*time.Millisecond), s.outcome, s.what)
	}
	fmt.Fprintf(&t, "\n| At rest | goroutines | descriptors | resident MiB |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(before)) {
		was, is := before[name], after[name]
		fmt.Fprintf(&t, "| %s | %d → %d | %d → %d | %d → %d |\n", name, was.goroutines, is.goroutines, was.descriptors, is.descriptors, was.rss>>20, is.rss>>20)
	}
	for _, w := range b.wrong {
		fmt.Fprintf(&t, "\n- BROKEN: %s\n", w)
	}
	return t.String()
}

// table writes counts, the largest first.
func table(t *strings.Builder, title string, counts map[string]int) {
	fmt.Fprintf(t, "| %s | |\n|---|---|\n", title)
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		if counts[x] != counts[y] {
			return counts[y] - counts[x]
		}
		return strings.Compare(x, y)
	}) {
		fmt.Fprintf(t, "| %s | %d |\n", name, counts[name])
	}
	t.WriteString("\n")
}
