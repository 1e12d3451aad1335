package console

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// An edge that is killed is missed at once, and what is shown is said to be old; when it is back the page goes on by itself,
// with what the new process knows. Until then it asks a few times and no more.
func TestEdgeIsKilledAndComesBack(t *testing.T) {
	site := the.main
	site.settled(t)
	s := newStand(t, site.admin())
	p := newTab(t, s.URL+"/console/", "ERR_", "502")
	p.text("#link", "Live")
	p.text("#node-list", firstNode)
	generation := js[string](p, "document.querySelector('.node dl').children[1].lastChild.textContent")
	site.load(1, "fast", "loopback: tokens=100000 delay=20ms")
	p.text("#live-table", "alice")

	p.countFetches()
	const tries = "askedAt.filter((_, i) => asked[i].includes('/events'))"
	site.Edge.Kill()
	p.text("#banner", "Connection to the Edge lost.")
	p.text("#banner", "What you see is from")
	p.text("#link", "Connection lost")
	p.until("document.title.startsWith('Connection lost')")
	p.until("document.querySelector('#live-table .act button').disabled")
	age := p.content("#live-table td[data-label=Age]")
	p.examine("lost")
	if later := p.content("#live-table td[data-label=Age]"); later != age {
		t.Errorf("what is old goes on: the age was %s and is %s", age, later)
	}
	p.until(tries + ".length >= 4")
	if err := site.StartEdge(context.Background()); err != nil {
		t.Fatal(err)
	}
	p.text("#link", "Live")
	p.until("document.getElementById('banner').hidden && document.title === 'IOP Edge'")
	p.until("[...document.querySelectorAll('.node')].length === 2 && [...document.querySelectorAll('.node')].every((n) => n.querySelector('h3 .chip').textContent === 'ready')")
	p.until("document.querySelector('.node dl').children[1].lastChild.textContent !== %q", generation)
	p.text("#live-empty", "Nothing is running")
	p.text("#node-events", "the Edge has restarted")
	// The pauses double, by chance half as long.
	at, least := js[[]float64](p, tries), 250.0
	for i := range len(at) - 1 {
		if gap := at[i+1] - at[i]; gap < least-10 {
			t.Errorf("try %d comes %.0f ms after the one before: a storm; all at %.0f", i+2, gap, at)
		}
		least = min(2*least, 7500)
	}
}

// A stream that is cut without a word is found, too, and the events in between aren't missed.
func TestStreamIsCut(t *testing.T) {
	s := newStand(t, the.main.admin())
	p := newTab(t, s.URL+"/console/", "ERR_")
	p.text("#node-list", firstNode)
	s.sever()
	p.text("#link", "Connection lost")
	if _, err := the.main.ask(t.Context(), "fast", "loopback: tokens=3"); err != nil {
		t.Fatal(err)
	}
	s.mend()
	js[bool](p, "document.getElementById('retry').click(), true") // it may have come back by itself already
	p.text("#link", "Live")
	p.text("#run-events", "run first byte")
	p.text("#ended-table", "ok")
}

// However many events come, the page draws twice a second and asks for a snapshot once a second at most, its tables stay
// short, and it can be used all the while.
func TestManyEvents(t *testing.T) {
	s := newStand(t, the.main.admin())
	s.answer("snapshot", text(fullSnapshot))
	begin := make(chan struct{})
	s.answer("events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-begin:
		case <-r.Context().Done():
		}
		for i := 0; r.Context().Err() == nil; i++ { // ends with the page
			if _, err := io.WriteString(w, event(fmt.Sprintf(`{"id":"e-%d","kind":"run_first_byte","at":"2026-11-29T12:00:00Z","run_id":"r%d","model":"m"}`, i, i))); err != nil {
				return
			}
			if i%100 == 99 {
				_ = http.NewResponseController(w).Flush()
				select { // about 10,000 a second
				case <-time.After(10 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		}
	})
	p := newTab(t, s.URL+"/console/")
	p.text("#live-table", "alice")
	js[bool](p, `(() => { window.draws = 0; window.from = performance.now();
		let last = 0; // changes of one drawing come at one time
		new MutationObserver(() => { const now = performance.now(); if (now - last > 100) draws++; last = now; }).observe(document.querySelector('#run-events tbody'), {childList: true});
		return true; })()`)
	before := s.count("snapshot")
	close(begin)
	p.until("draws >= 6")
	type seen struct {
		Draws, Rows int
		Ms          float64
	}
	got := js[seen](p, "({Draws: draws, Ms: performance.now() - from, Rows: document.querySelectorAll('#run-events tbody tr').length})")
	if most := int(got.Ms/500) + 2; got.Draws > most {
		t.Errorf("%d drawings in %.0f ms", got.Draws, got.Ms)
	}
	if n, most := s.count("snapshot")-before, int(got.Ms/1000)+2; n > most {
		t.Errorf("%d snapshots in %.0f ms", n, got.Ms)
	}
	if got.Rows > 25 {
		t.Errorf("%d rows of events", got.Rows)
	}
	p.click("#live-table .act button")
	p.text("#cancel", "Cancel this request?")
}

// A tab that nobody sees asks for nothing: its stream is closed, and opened when it is looked at again.
func TestHiddenTabIsQuiet(t *testing.T) {
	s := newStand(t, the.main.admin())
	gone := make(chan struct{}, 8)
	s.answer("events", func(w http.ResponseWriter, r *http.Request) {
		stream()(w, r)
		gone <- struct{}{}
	})
	p := newTab(t, s.URL+"/console/")
	p.text("#node-list", firstNode)
	hide := func(hidden bool) {
		js[bool](p, `(() => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => %t}); document.dispatchEvent(new Event('visibilitychange')); return true; })()`, hidden)
	}
	hide(true)
	select {
	case <-gone:
	case <-time.After(limit):
		t.Fatal("its stream stays open")
	}
	p.countFetches()
	js[bool](p, "new Promise((done) => setTimeout(() => done(true), 2500))") // longer than two snapshots are apart
	if asked := js[[]string](p, "asked"); len(asked) != 0 {
		t.Errorf("a hidden tab asks for %q", asked)
	}
	hide(false)
	p.until("asked.some((url) => url.includes('/events')) && asked.some((url) => url.includes('/snapshot'))")
	p.text("#link", "Live")
}
