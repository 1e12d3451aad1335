package console

import (
	"context"
	"net/http"
	"testing"
)

// What a page shows before it knows anything, and of an edge that has nothing.
func TestLoadingAndEmpty(t *testing.T) {
	s := newStand(t, the.main.admin())
	s.answer("snapshot", never)
	s.answer("events", stream())
	p := newTab(t, s.URL+"/console/")
	p.text("#loading", "Asking the Edge")
	if p.visible("#content") || p.visible("#nav") || p.visible("#banner") {
		t.Error("it shows what it doesn't know")
	}
	p.examine("loading")
	s.answer("snapshot", text(snapshot(nil)))
	p.open(s.URL + "/console/")
	p.text("#nodes-empty", "No node is configured")
	p.text("#live-empty", "Nothing is running")
	p.text("#ended-empty", "Nothing has ended")
	p.text("#queue-empty", "No route is configured")
	p.text("#node-events-empty", "Nothing has happened")
	p.text("#run-events-empty", "Nobody has asked")
	p.text("#link", "Live")
	if p.visible("#slots") || p.visible("#loading") {
		t.Error("there are no slots, and nothing is loading")
	}
	p.examine("empty")
}

// Everything that a page can show at once, also what is rare: it must be readable on a phone.
func TestFull(t *testing.T) {
	s := newStand(t, the.main.admin())
	s.answer("snapshot", text(fullSnapshot))
	s.answer("events", stream(fullEvents()...))
	p := newTab(t, s.URL+"/console/")
	p.text("#slots", "hosted-openai")
	p.text("#node-list", "ready, drained")
	p.text("#node-list", "v1.1.0, the Edge has v1.2.0")
	p.text("#node-list", "taken out: it failed 5 times in a row")
	p.text("#warnings", "v1.1.0, v1.2.0")
	p.text("#live-table", "alice")
	p.text("#ended-table", "upstream_truncated")
	p.text("#ended-table", "48 tokens/s")
	p.text("#node-events", "adapter unavailable")
	p.text("#node-events", "3 events can't be shown: this page read too slowly")
	p.text("#live-more", "The 3 oldest are shown; 4 are younger.")
	p.examine("full")
}

// Outside loopback a key is asked for: a wrong one isn't taken, the right one is, and one that is taken away while the page
// is open ends it. The key is in no address and nowhere that outlives the page.
func TestSignIn(t *testing.T) {
	guarded, err := startSiteAt(context.Background(), "bob", "0.0.0.0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := guarded.stop(); err != nil {
			t.Error(err)
		}
	})
	s := newStand(t, guarded.admin())
	p := newTab(t, s.URL, "401") // the browser notes each refusal
	p.text("#signin", "asks for an admin key")
	p.until("document.activeElement.id === 'key'")
	if p.visible("#content") || p.visible("#nav") {
		t.Error("it shows something without a key")
	}
	p.examine("signin")
	p.keys("sk-iop-wrong\r")
	p.text("#signin-error", "does not know this key")
	p.examine("signin-wrong")
	p.typed("key", adminKey)
	p.keys("\r")
	p.text("#node-list", firstNode)
	p.text("#link", "Live")
	if kept := js[string](p, "JSON.stringify([location.href, document.cookie, {...localStorage}, {...sessionStorage}, history.state])"); kept != `["`+s.URL+`/console/","",{},{},null]` {
		t.Errorf("what is kept: %s", kept)
	}
	s.answer("snapshot", status(http.StatusUnauthorized, "no valid admin key"))
	p.text("#signin-error", "takes this key no longer")
	if p.visible("#content") {
		t.Error("it shows what is old to who may not see it")
	}
}

// An edge that refuses the page says why.
func TestRefused(t *testing.T) {
	s := newStand(t, the.main.admin())
	s.answer("snapshot", status(http.StatusForbidden, "this listener answers to loopback names only"))
	p := newTab(t, s.URL+"/console/", "403")
	p.text("#banner", "The Edge refuses this page:")
	p.text("#banner", "loopback names only")
	p.examine("refused")
}

// The edge has room for so many pages: one more says so, and waits for its turn.
func TestTooManyPages(t *testing.T) {
	s := newStand(t, the.main.admin())
	s.answer("events", status(http.StatusServiceUnavailable, "16 follow events already"))
	p := newTab(t, s.URL+"/console/", "503")
	p.text("#banner", "The Edge refuses: 16 follow events already.")
	s.answer("events", nil)
	p.text("#link", "Live")
	p.text("#node-list", firstNode)
}

// Pausing closes the stream, and nothing moves until it is ended.
func TestPause(t *testing.T) {
	s := newStand(t, the.main.admin())
	p := newTab(t, s.URL+"/console/")
	p.text("#link", "Live")
	p.text("#node-list", firstNode)
	p.click("#pause")
	p.text("#banner", "Paused.")
	if js[string](p, "document.getElementById('pause').getAttribute('aria-pressed')") != "true" {
		t.Error("the button doesn't say that it is pressed")
	}
	p.examine("paused")
	p.click("#pause")
	p.text("#link", "Live")
	p.until("document.getElementById('banner').hidden")
}
