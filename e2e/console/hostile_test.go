package console

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// hostile is a name that wants to be more than a text: markup, a script, an order of its own, and no end.
const hostile = `<img src=x onerror="pwned=1"><script>pwned=1</script>"'><svg/onload=pwned=1>javascript:pwned=1 ${pwned=1} {{pwned=1}}` + "\u202egnp.exe\u2066\u0000\u200b" + `&lt;b&gt;`

// What callers, nodes and providers call things is shown as the text that it is, wherever it comes in.
func TestHostileNames(t *testing.T) {
	s := newStand(t, the.main.admin())
	s.answer("snapshot", text(poison(t, fullSnapshot)))
	var events []string
	for _, e := range fullEvents() {
		data := strings.TrimSpace(strings.TrimPrefix(e, "data: "))
		events = append(events, event(poison(t, data)))
	}
	s.answer("events", stream(events...))
	s.answer("why", text(poison(t, `{"model":"m","principal":"","path":"","problems":[{"code":"c","text":"t"}],"route":{"model":"m","adapter":"","target":"t","nodes":[],"labels":{},
		"queue_depth":1,"queue_wait_ms":1,"fail_fast":false},"target":"t","queue":{"waiting":1,"longest_ms":1},"candidates":[{"node":"n","adapter":"a","state":"ready","on_route":true,
		"takes_work":false,"loaded":false,"in_flight":1,"capacity":1,"reasons":[{"code":"c","text":"t"}]}]}`)))
	p := newTab(t, s.URL+"/console/")
	p.text("#node-list", "<img src=x")
	p.text("#live-table", "<img src=x")
	p.text("#ended-table", "<script>")
	p.text("#slots-table", "<svg/onload")
	p.text("#warnings", "javascript:")
	p.text("#events", "<img src=x")
	p.typed("why-model", "m")
	p.submit("why-form")
	p.text("#why-result", "<img src=x")
	p.click("#live-table .act button")
	p.text("#cancel-facts", "<img src=x")
	harmless(t, p)
	p.click("#cancel-no")
	p.as(phone)
	p.fits("hostile, on a phone")
	p.shoot("hostile-phone")
	p.as(wide)
	p.fits("hostile")
	p.shoot("hostile-wide")
	harmless(t, p)
}

func harmless(t *testing.T, p *tab) {
	t.Helper()
	if js[bool](p, "'pwned' in window") {
		t.Error("a name was run")
	}
	if n := js[int](p, "document.querySelectorAll('img, svg, b, iframe, object, style').length"); n != 1 {
		t.Errorf("a name became an element: there are %d where the icon is one", n)
	}
	if n := js[int](p, "document.scripts.length"); n != 1 {
		t.Errorf("there are %d scripts", n)
	}
	if js[bool](p, `/[\u202e\u2066\u200b\u0000]/.test(document.body.textContent)`) {
		t.Error("a name can reorder what stands beside it")
	}
}

// poison puts a hostile name behind every text, but for those that the page goes by.
func poison(t *testing.T, of string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(of), &v); err != nil {
		t.Fatal(err)
	}
	keep := map[string]bool{"at": true, "since": true, "last_heartbeat": true, "created_at": true, "placed_at": true, "ended_at": true, "until": true, "last_refresh": true}
	var walk func(name string, v any) any
	walk = func(name string, v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				v[k] = walk(k, v[k])
			}
		case []any:
			for i := range v {
				v[i] = walk(name, v[i])
			}
		case string:
			if !keep[name] {
				return hostile + v
			}
		}
		return v
	}
	return encode(walk("", v))
}

// The same with a real edge, node and caller: the model is called so.
func TestHostileModel(t *testing.T) {
	the.main.settled(t)
	p := newTab(t, the.main.admin())
	p.text("#node-list", oddModel)
	if answer, err := the.main.ask(t.Context(), oddModel, "loopback: tokens=2"); err != nil || !strings.Contains(answer, "[DONE]") {
		t.Fatal(answer, err)
	}
	p.text("#run-events", oddModel)
	p.text("#ended-table", oddModel)
	p.click("#ended-table tbody tr:first-child button")
	p.text("#run-facts", oddModel)
	p.text("#run-steps", "first byte")
	harmless(t, p)
}

// The browser keeps the page's policy: nothing inline runs, nothing is asked of another origin, nobody frames it.
func TestPolicyIsKept(t *testing.T) {
	s := newStand(t, the.main.admin())
	p := newTab(t, the.main.admin(), "Content Security Policy", "violates", "TrustedScript", "TrustedHTML", "trusted types")
	p.text("#node-list", firstNode)
	for what, try := range map[string]string{
		"an inline script":  `(() => { const e = document.createElement('script'); e.textContent = 'pwned=1'; document.body.append(e); })()`,
		"markup":            `document.body.innerHTML = '<img src=x onerror=pwned=1>'`,
		"a handler":         `document.body.setAttribute('onclick', 'pwned=1'); document.body.click()`,
		"a script's source": fmt.Sprintf(`(() => { const e = document.createElement('script'); e.src = '%s/console/app.js'; document.body.append(e); })()`, s.URL),
	} {
		js[bool](p, `(() => { try { %s } catch {} return true })()`, try)
		if js[bool](p, "'pwned' in window") {
			t.Errorf("%s ran", what)
		}
	}
	if !js[bool](p, "fetch(%q).then(() => false, () => true)", s.URL+"/healthz") {
		t.Error("another origin was asked")
	}
	if !js[bool](p, `new Promise((done) => { const f = document.createElement('iframe'); f.src = location.href; f.onload = () => { let read = true; try { read = f.contentDocument.title === 'IOP Edge' } catch { read = false } done(!read) }; document.body.append(f); setTimeout(() => done(true), 3000) })`) {
		t.Error("the page can be framed")
	}
}
