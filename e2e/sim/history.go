package sim

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// entry is one thing that happened.
type entry struct {
	at   time.Duration // since the seed's beginning
	who  string        // caller, node, edge, wire, provider: what it happened to
	what string
	n    int // of who, so that the order of what one of them did is kept
}

// history is what happened, as all who take part tell it. Its methods may be called concurrently.
type history struct {
	start time.Time

	mu      sync.Mutex
	entries []entry
	counts  map[string]int
	broken  []string // invariants that were found broken on the way, by who sees it first
}

func newHistory() *history { return &history{start: time.Now(), counts: map[string]int{}} }

// now is the time since the beginning.
func (h *history) now() time.Duration { return time.Since(h.start) }

// tell notes what happened to somebody.
func (h *history) tell(who, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[who]++
	h.entries = append(h.entries, entry{at: h.now(), who: who, what: fmt.Sprintf(format, args...), n: h.counts[who]})
}

// breach notes an invariant that is broken.
func (h *history) breach(invariant, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = append(h.broken, fmt.Sprintf("%v %s: %s", h.now(), invariant, fmt.Sprintf(format, args...)))
}

// sorted returns the entries by time. What happened in the same instant to different ones has no order but their names'.
func (h *history) sorted() []entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Clone(h.entries)
	slices.SortStableFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.who, b.who), cmp.Compare(a.n, b.n))
	})
	return all
}

// hash is the history in short. What one of them did within one instant counts in whatever order it was told.
func (h *history) hash() string {
	all := h.sorted()
	slices.SortStableFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.who, b.who), strings.Compare(a.what, b.what))
	})
	sum := sha256.New()
	for _, e := range all {
		fmt.Fprintln(sum, e.at, e.who, e.what)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// print writes the history for people.
func (h *history) print(w io.Writer) {
	for _, e := range h.sorted() {
		fmt.Fprintf(w, "%16v %-14s %s\n", e.at, e.who, e.what)
	}
}

// tellAt is tell for what is heard of later.
func (h *history) tellAt(at time.Time, who, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[who]++
	h.entries = append(h.entries, entry{at: at.Sub(h.start), who: who, what: fmt.Sprintf(format, args...), n: h.counts[who]})
}

// Print writes what happened, the counts and what was found.
func (r *Report) Print(w io.Writer) {
	r.history.print(w)
	fmt.Fprintf(w, "seed %d: %v; %v of fake time, history %s\n", r.Seed, r.Stats, r.Virtual, r.Hash)
	for _, b := range r.Breaches {
		fmt.Fprintf(w, "broken: %s\n", b)
	}
}
