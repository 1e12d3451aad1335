package console

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"iop/packages/go/patience"
)

// limit bounds every wait. A browser is several processes, which a busy machine lets run one by one.
const limit = 2 * patience.Limit

// tab is one page of the browser.
type tab struct {
	t   *testing.T
	ctx context.Context
	now look

	mu       sync.Mutex
	problems []string // errors in the page's log, exceptions, violations of its policy
}

// look is how a page is looked at.
type look struct {
	name          string
	width, height int64
	dark, still   bool
}

var (
	wide   = look{name: "wide", width: 1280, height: 900}
	dark   = look{name: "dark", width: 1280, height: 900, dark: true}
	tablet = look{name: "tablet", width: 820, height: 1100}
	phone  = look{name: "phone", width: 360, height: 740}
	night  = look{name: "phone-dark", width: 360, height: 740, dark: true, still: true}
)

// newTab opens a page at an address. Whatever its log says of errors fails the test at its end, but for what it expects:
// an error that holds one of these words.
func newTab(t *testing.T, address string, expects ...string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(the.browser)
	p := &tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		p.forgive()
		p.mu.Lock()
		defer p.mu.Unlock()
	problems:
		for _, problem := range p.problems {
			for _, word := range expects {
				if strings.Contains(problem, word) {
					continue problems
				}
			}
			t.Errorf("the browser says: %s", problem)
		}
	})
	if err := chromedp.Listen(ctx, p.listen); err != nil { // it opens the tab
		t.Fatal(err)
	}
	p.as(wide)
	p.open(address)
	return p
}

// changedNetwork is what the browser says of a request that it gave up because a network interface came or went on this
// machine, as they do in tests of networks. It is nobody's fault; the page gets over it, once it is loaded whole.
const changedNetwork = "ERR_NETWORK_CHANGED"

// open opens a page, and waits until its scripts are there.
func (p *tab) open(address string) {
	p.t.Helper()
	p.navigate(address)
	until(p.t, "the page starts", func() bool {
		if js[bool](p, "(document.getElementById('link')?.dataset.phase ?? 'starting') !== 'starting'") {
			return true
		}
		if p.forgive() {
			p.navigate(address)
		}
		return false
	})
}

func (p *tab) navigate(address string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	for {
		err := chromedp.Do(ctx, chromedp.Navigate(address))
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), changedNetwork) {
			p.t.Fatal(err)
		}
	}
}

// forgive forgets that the network has changed, and reports whether it had.
func (p *tab) forgive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.problems)
	p.problems = slices.DeleteFunc(p.problems, func(problem string) bool { return strings.Contains(problem, changedNetwork) })
	return len(p.problems) < before
}

// listen takes the browser's events, in its loop.
func (p *tab) listen(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.problems = append(p.problems, (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			p.problems = append(p.problems, e.Entry.Text+" "+e.Entry.URL)
		}
	case *page.EventJavascriptDialogOpening:
		p.problems = append(p.problems, "a dialog of a script: "+e.Message)
		go func() { // else the page stands still; ends with the tab
			_, _ = chromedp.Call(p.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	}
}

func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// call runs a command of the browser's protocol.
func call[P, R any](p *tab, command cdp.Command[P, R], params P) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	if _, err := chromedp.Call(ctx, command, params); err != nil {
		p.t.Fatal(err)
	}
}

// click clicks on what a selector finds first, once it is there and nothing covers it. In one step: between two, a drawing
// may move it away.
func (p *tab) click(selector string) {
	p.t.Helper()
	p.until(`(() => {
		const e = document.querySelector(%q);
		if (!e || !e.checkVisibility() || e.disabled) return false;
		e.scrollIntoView({block: 'center'});
		const box = e.getBoundingClientRect(), hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
		if (!e.contains(hit)) return false;
		e.focus();
		e.click();
		return true;
	})()`, selector)
}

// countFetches notes from now on what the page asks for, in asked, and when, in askedAt. The browser itself tries a request again that it sent on an old
// connection, so what arrives isn't what was asked.
func (p *tab) countFetches() {
	p.t.Helper()
	js[bool](p, "(() => { window.asked = []; window.askedAt = []; const real = fetch; window.fetch = (url, ...more) => { asked.push(String(url)); askedAt.push(performance.now()); return real(url, ...more) }; return true })()")
}

// keys presses keys, one after the other.
func (p *tab) keys(keys string) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(keys))
}

// typed types into a field until just that stands there: a form that was sent at once went without the last letter (seen
// once on a busy machine, and not by 800 tries; the page itself never writes into a field).
func (p *tab) typed(field, text string) {
	p.t.Helper()
	until(p.t, field+" has "+text, func() bool {
		js[bool](p, "document.getElementById('"+field+"').value = '', true")
		p.click("#" + field)
		p.keys(text)
		return js[string](p, "document.getElementById('"+field+"').value") == text
	})
}

// submit sends a form. Enter in a field with suggestions may choose one instead, when they have just come up.
func (p *tab) submit(form string) {
	p.t.Helper()
	js[bool](p, "document.getElementById('"+form+"').requestSubmit(), true")
}

// as sets how the page is looked at.
func (p *tab) as(l look) {
	p.t.Helper()
	p.now = l
	scheme, motion := "light", "no-preference"
	if l.dark {
		scheme = "dark"
	}
	if l.still {
		motion = "reduce"
	}
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: l.width, Height: l.height, DeviceScaleFactor: 1, Mobile: l.width < 600})
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: motion}}})
}

// js evaluates an expression.
func js[T any](p *tab, expression string, args ...any) T {
	p.t.Helper()
	if len(args) > 0 {
		expression = fmt.Sprintf(expression, args...)
	}
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%v in %s", err, expression)
	}
	return value
}

// until waits for an expression to be true.
func (p *tab) until(expression string, args ...any) {
	p.t.Helper()
	if len(args) > 0 {
		expression = fmt.Sprintf(expression, args...)
	}
	came := false
	defer func() {
		if !came {
			p.t.Logf("the page:\n%s", js[string](p, "document.body.innerText"))
			p.shoot("failed-" + strings.ReplaceAll(p.t.Name(), "/", "-"))
		}
	}()
	until(p.t, expression, func() bool { return js[bool](p, "Boolean("+expression+")") })
	came = true
}

// text waits for a text inside what a selector finds.
func (p *tab) text(selector, part string) {
	p.t.Helper()
	p.until("[...document.querySelectorAll(%q)].some((e) => e.checkVisibility() && e.textContent.includes(%q))", selector, part)
}

// content is the text of what a selector finds first.
func (p *tab) content(selector string) string {
	p.t.Helper()
	return js[string](p, "document.querySelector(%q)?.innerText ?? ''", selector)
}

func (p *tab) visible(selector string) bool {
	p.t.Helper()
	return js[bool](p, "Boolean(document.querySelector(%q)?.checkVisibility())", selector)
}

// examine looks at a state of the page, wide and light, and narrow and dark: nothing is wider than the screen, nothing is
// inaccessible. Who wants pictures gets the other two, as well.
func (p *tab) examine(state string) {
	p.t.Helper()
	looks := []look{wide, night}
	if the.shots != "" {
		looks = append(looks, phone, dark)
	}
	for _, l := range looks {
		p.as(l)
		p.fits(state + ", " + l.name)
		p.accessible(state + ", " + l.name)
		p.shoot(state + "-" + l.name)
	}
	p.as(tablet)
	p.fits(state + ", tablet")
	p.shoot(state + "-tablet")
	p.as(wide)
}

// fits fails the test for what is wider than the screen. (A phone's window grows with its page: innerWidth says nothing.)
func (p *tab) fits(state string) {
	p.t.Helper()
	if wider := js[[]string](p, `[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > %d + 1
		&& getComputedStyle(e).position !== 'absolute').map((e) => e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 60)).slice(0, 5)`, p.now.width); len(wider) > 0 {
		p.t.Errorf("%s: wider than the screen: %s", state, strings.Join(wider, " | "))
	}
	if js[bool](p, "document.documentElement.scrollWidth > %d", p.now.width) {
		p.t.Errorf("%s: the page scrolls sideways", state)
	}
}

// shoot takes a picture, if any are wanted.
func (p *tab) shoot(name string) {
	p.t.Helper()
	if the.shots == "" {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(the.shots, name+".png"), picture, 0o644); err != nil {
		p.t.Error(err)
	}
}
