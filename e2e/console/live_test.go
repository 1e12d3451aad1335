package console

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"iop/e2e/procs"
)

// Two real nodes under load: what runs, what waits and what has ended is shown; then one of them stops, and comes back.
func TestTwoNodesUnderLoad(t *testing.T) {
	s := the.main
	s.settled(t)
	p := newTab(t, s.admin())
	p.text("#node-list", firstNode)
	p.text("#node-list", secondNode)
	p.until("[...document.querySelectorAll('.node')].every((n) => n.querySelector('h3 .chip').textContent === 'ready')")
	if _, err := s.ask(t.Context(), "fast", "loopback: tokens=20 delay=5ms"); err != nil {
		t.Fatal(err)
	}
	s.load(7, "fast", "loopback: tokens=100000 delay=20ms")
	p.until("document.querySelectorAll('#live-table tbody tr').length === 7")
	p.until("[...document.querySelectorAll('#live-table .chip')].filter((c) => c.textContent === 'running').length === 4")
	p.text("#queue-count", "3 waiting")
	p.text("#node-list", "2 of 2 in flight")
	p.text("#ended-table", "tokens/s")
	p.until("[...document.querySelectorAll('#live-table td[data-label=Output]')].filter((c) => c.textContent.endsWith('B')).length === 4")
	p.until("[...document.querySelectorAll(`#live-table td[data-label='First byte']`)].filter((c) => /^[0-9]/.test(c.textContent)).length === 4")
	p.text("#run-events", "run queued")
	p.examine("load")

	js[bool](p, "[...document.querySelectorAll('#live-table tbody tr')].find((r) => r.textContent.includes('queued')).querySelector('button').click(), true")
	p.text("#run-steps", "submitted")
	p.text("#run-steps", "queued")
	p.text("#run-facts", "alice")
	p.examine("run")
	p.keys(kb.Escape)
	p.until("!document.getElementById('run').open")

	p.typed("why-model", "fast")
	p.submit("why-form")
	p.text("#why-result", "It waits: nothing takes it now.")
	p.text("#why-result", "3 of at most 8 wait")
	p.text("#why-result", "2 of 2 places are taken")
	p.examine("why")

	s.second.Kill()
	p.text(".node[aria-label='Node "+secondNode+"'] .chip", "offline")
	p.text("#ended-table", "node_lost")
	p.text("#glance", "1 of 2")
	p.examine("stopped")
	s.quiet()
	p.text("#live-empty", "Nothing is running")
	if err := s.startSecond(context.Background()); err != nil {
		t.Fatal(err)
	}
	p.text(".node[aria-label='Node "+secondNode+"'] .chip", "ready")
	p.text("#glance", "2 of 2")
}

// A model that isn't there is refused, and one that is goes somewhere; a run that nobody knows is told so.
func TestWhyAndExplain(t *testing.T) {
	the.main.settled(t)
	p := newTab(t, the.main.admin(), "404")
	p.text("#node-list", secondNode)
	p.typed("why-model", "no-such-model")
	p.submit("why-form")
	p.text("#why-result", "It is refused now.")
	p.text("#why-result", "unknown_model")
	p.typed("why-model", "fast")
	p.submit("why-form")
	p.text("#why-result", "It would go to")
	p.text("#why-result", firstNode+" / loopback")
	p.click("#explain-run")
	p.keys("nobody-knows-it\r")
	p.text("#run-error", "no such run")
	p.examine("run-unknown")
	p.click("#run-close")
	p.until("!document.getElementById('run').open && document.activeElement.closest('#explain-form')")
}

// A cancel asks first, and ends the request for its caller and at its node.
func TestCancel(t *testing.T) {
	s := the.main
	s.settled(t)
	p := newTab(t, s.admin())
	p.text("#live-empty", "Nothing is running")
	type answer struct {
		text string
		err  error
	}
	ended := make(chan answer, 1)
	go func() { // ends with its request
		text, err := s.ask(context.Background(), "fast", "loopback: tokens=100000 delay=20ms")
		ended <- answer{text, err}
	}()
	p.text("#live-table", "alice")
	p.click("#live-table .act button")
	p.text("#cancel", "Cancel this request?")
	p.text("#cancel-facts", "fast")
	p.until("document.activeElement.id === 'cancel-no'") // a stray Enter cancels nothing
	p.examine("cancel")
	p.click("#cancel-no")
	p.until("document.activeElement.closest('#live-table .act')")
	select {
	case a := <-ended:
		t.Fatalf("it was ended without a yes: %q %v", a.text, a.err)
	default:
	}
	p.click("#live-table .act button")
	p.click("#cancel-yes")
	p.text("#said", "is being cancelled")
	p.text("#ended-table", "cancelled")
	p.text("#live-empty", "Nothing is running")
	a := <-ended
	if a.err == nil || strings.Contains(a.text, "[DONE]") {
		t.Errorf("a cancelled answer looks whole: %q", a.text)
	}
	// The row is gone, and so is its button: the focus is at the list's title and not lost.
	p.until("document.activeElement.id === 'live-title'")
}

// A cancel that comes too late says so, and the dialog stays.
func TestCancelTooLate(t *testing.T) {
	s := newStand(t, the.main.admin())
	s.answer("snapshot", text(fullSnapshot))
	s.answer("events", stream())
	p := newTab(t, s.URL+"/console/", "404")
	p.click("#live-table .act button")
	p.click("#cancel-yes")
	p.text("#cancel-error", "no such run")
	p.keys(kb.Escape)
	p.until("!document.getElementById('cancel').open && document.activeElement.closest('#live-table .act')")
}

// A real slot is shown with its state and revision, a change of it as soon as it happens, and its key nowhere.
func TestSlot(t *testing.T) {
	const key = "sk-provider-S3CR3T-0123456789abcdef"
	file := filepath.Join(t.TempDir(), "provider.key")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	site, err := procs.StartSite(context.Background(), procs.SiteConfig{Bin: the.bin, Managed: "1h",
		Adapters: `[{name: hosted, kind: openai, base_url: "https://127.0.0.1:1"}]`,
		Routes:   `[{model: large, adapter: hosted, target: m, slot: hosted-main}]`,
		Edge: `profiles: [{id: hosted, origin: "https://127.0.0.1:1", paths: ["POST /v1/chat/completions"], header: Authorization}]
slots: [{id: hosted-main, source: "file:` + file + `", profile: hosted, nodes: [` + firstNode + `]}]`})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := site.Stop(); err != nil {
			t.Error(err)
		}
	})
	address := "http://" + site.Admin
	p := newTab(t, address)
	p.text("#slots-table", "hosted-main")
	p.text("#slots-table", "active")
	p.text("#slots-table", firstNode)
	p.text("#slots-table", "large")
	p.examine("slot")
	response, err := http.Post(address+"/admin/v1/slots/hosted-main/disable", "application/json", nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(response, err)
	}
	response.Body.Close()
	p.text("#slots-table", "disabled")
	for _, path := range []string{"snapshot", "slots", "events?last=100"} {
		if js[bool](p, "new Promise(async (done) => { const r = (await fetch('../admin/v1/%s')).body.getReader(); done(new TextDecoder().decode((await r.read()).value).includes('S3CR3T')) })", path) {
			t.Errorf("%s shows the key", path)
		}
	}
	if js[bool](p, "document.documentElement.outerHTML.includes('S3CR3T')") {
		t.Error("the page shows the key")
	}
}
