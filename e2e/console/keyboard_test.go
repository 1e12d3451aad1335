package console

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// focus is where the keyboard is.
type focus struct {
	Name    string // of the element
	Visible bool   // it has an outline, and is on the screen
	Body    bool   // nothing has the focus
}

const whereIsIt = `(() => {
	const e = document.activeElement, box = e.getBoundingClientRect(), style = getComputedStyle(e);
	return {Name: e.id || e.getAttribute('aria-label') || e.textContent.trim().slice(0, 40), Body: e === document.body,
		Visible: parseFloat(style.outlineWidth) >= 2 && style.outlineStyle !== 'none' && box.bottom > 0 && box.top < innerHeight};
})()`

// All can be reached and done without a mouse, what has the focus is seen, and nothing holds it.
func TestKeyboardOnly(t *testing.T) {
	s := newStand(t, the.main.admin())
	s.answer("snapshot", text(fullSnapshot))
	more := make(chan string)
	s.answer("events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, strings.Join(fullEvents(), ""))
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case e := <-more:
				_, _ = io.WriteString(w, e)
			case <-r.Context().Done():
				return
			}
		}
	})
	p := newTab(t, s.URL+"/console/", "404")
	p.text("#live-table", "alice")
	p.text("#node-events", "fenced")
	walk := walkAll(p)
	for _, name := range []string{"Skip to content", "pause", "Nodes", "Events", "2 more models", "Timeline of qwen3-8b, run 01JDWQ8Z6M3V5T0K9E2B7XHGNA",
		"Cancel qwen3-8b, run 01JDWQ8Z6M3V5T0K9E2B7XHGNC", "Timeline of qwen3-8b, run 01JDWQ8Z6M3V5T0K9E2B7XHGNG", "why-model", "For one caller, or one path",
		"Explain the model", "explain-run", "Show its timeline"} {
		if !slices.Contains(walk, name) {
			t.Errorf("%q can't be reached by Tab; what can: %q", name, walk)
		}
	}
	p.keys(kb.Tab) // the first: the way past the navigation
	if f := js[focus](p, whereIsIt); f.Name != "Skip to content" {
		t.Errorf("Tab begins at %q", f.Name)
	}
	p.keys("\r")
	p.until("document.activeElement.id === 'main'")

	tabTo(p, "Cancel qwen3-8b, run 01JDWQ8Z6M3V5T0K9E2B7XHGNC")
	p.keys("\r")
	p.until("document.getElementById('cancel').open")
	for range 6 { // a dialog keeps the focus, or lets it go to the browser itself
		p.keys(kb.Tab)
		if f := js[focus](p, whereIsIt); !f.Body && f.Name != "cancel-no" && f.Name != "cancel-yes" && f.Name != "cancel" {
			t.Errorf("behind the dialog %q has the focus", f.Name)
		}
	}
	p.keys(kb.Escape)
	p.until("!document.getElementById('cancel').open")
	if f := js[focus](p, whereIsIt); f.Name != "Cancel qwen3-8b, run 01JDWQ8Z6M3V5T0K9E2B7XHGNC" || !f.Visible {
		t.Errorf("after the dialog the focus is at %+v", f)
	}
	p.shoot("focus-wide")

	// A drawing moves the focus nowhere.
	before := s.count("snapshot")
	more <- event(`{"id":"e-9","at":"2026-11-29T12:00:00Z","kind":"reloaded","text":"what comes last"}`)
	p.text("#node-events", "what comes last")
	until(t, "another snapshot", func() bool { return s.count("snapshot") > before })
	if f := js[focus](p, whereIsIt); f.Name != "Cancel qwen3-8b, run 01JDWQ8Z6M3V5T0K9E2B7XHGNC" {
		t.Errorf("after a drawing the focus is at %+v", f)
	}
}

// walkAll presses Tab until nothing has the focus any more, and returns what had it.
func walkAll(p *tab) (names []string) {
	p.t.Helper()
	for range 120 {
		p.keys(kb.Tab)
		f := js[focus](p, whereIsIt)
		if f.Body {
			return names
		}
		if !f.Visible {
			p.t.Errorf("%q has the focus, which isn't seen", f.Name)
		}
		if n := len(names); n > 0 && names[n-1] == f.Name {
			p.t.Fatalf("%q holds the focus", f.Name)
		}
		names = append(names, f.Name)
	}
	p.t.Fatalf("the focus doesn't come to an end: %q", names)
	return nil
}

func tabTo(p *tab, name string) {
	p.t.Helper()
	for range 120 {
		p.keys(kb.Tab)
		if f := js[focus](p, whereIsIt); f.Name == name {
			return
		}
	}
	p.t.Fatalf("Tab doesn't come to %q", name)
}
