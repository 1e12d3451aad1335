package e2e

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// refusals are what providers answer instead.
var refusals = []struct {
	status int
	after  string // Retry-After
	text   string
}{
	{400, "", "context is too long"}, {401, "", "no key"}, {403, "", "not yours"}, {404, "", "model 'm' not found"}, {429, "7", "slow down"}, {500, "", "engine died"},
	{503, "3", "server busy, please try again.  maximum pending requests exceeded"}, {529, "", "Overloaded"},
}

// OL-02, ST-21: what a provider refuses is refused, once, in the caller's words: with its own status where it is tunnelled,
// and as a failure of the provider where the request was a run. The node and its adapter stay as they are.
func TestPairsTellOfRefusals(t *testing.T) {
	t.Parallel()
	eachPair(t, harness.Options{}, 1, func(t *testing.T, p *pair) {
		for _, r := range refusals {
			lines := []string{}
			if r.after != "" {
				lines = append(lines, "Retry-After: "+r.after)
			}
			p.says(fakeprovider.Refuse(r.status, r.text, lines...))
			for _, stream := range []bool{true, false} {
				earlier := len(p.seen())
				a := p.ask(p.request(chatOf(stream)))
				if n := len(p.seen()) - earlier; n != 1 {
					t.Errorf("%d: the provider saw %d requests", r.status, n)
				}
				if a.Cut != nil || a.Header.Get("Retry-After") != r.after {
					t.Errorf("%d: %v, header %v", r.status, a.Cut, a.Header)
				}
				if p.tunnel() {
					wantWhole(t, a, r.status, fakeprovider.DialectOf(p.path).Refusal(r.status, r.text))
					wantLog(t, p.ended(a.Header), map[string]any{"code": "ok", "status": r.status, "attempts": 1})
					continue
				}
				p.wantFailure(t, a, 502, "upstream_error")
				if said := strings.Join(strings.Fields(r.text), " "); !strings.Contains(string(a.Bytes), fmt.Sprint(r.status)) || !strings.Contains(string(a.Bytes), said) {
					t.Errorf("%d: it doesn't say why: %s", r.status, a.Bytes)
				}
				wantLog(t, p.ended(a.Header), map[string]any{"code": "upstream_error", "origin": "provider", "attempts": 1})
			}
		}
		p.idle()
		if n := p.Node("box"); n.State != "ready" || !n.Adapters[0].Available || n.Adapters[0].InFlight > 0 {
			t.Errorf("%+v", n)
		}
		p.works(t)
	})
}

// works checks that a request in order is answered.
func (p *pair) works(t *testing.T) {
	t.Helper()
	s, q := sayings()["text"], chatOf(true)
	p.says(fakeprovider.Speak(s))
	h, err := p.read(p.ask(p.request(q)), true, !p.tunnel())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "afterwards", h, p.understood(s, q))
}

// wantFailure checks an error response in the caller's dialect.
func (p *pair) wantFailure(t *testing.T, a *harness.Answer, status int, code string) {
	t.Helper()
	told, _, err := p.refusal(a.Bytes)
	if a.StatusCode != status || told != code || err != nil || a.Cut != nil || !strings.HasPrefix(a.Header.Get("Content-Type"), "application/json") {
		t.Errorf("%d %v %s: %v; want %d %s", a.StatusCode, a.Header, shorten(a.Bytes), err, status, code)
	}
	if a.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("the provider may have run it, and clients aren't told: %v", a.Header)
	}
}

// fault is what becomes of a stream after its second piece of text.
type fault struct {
	name string
	more func(d fakeprovider.Dialect) string // what else comes, nil = nothing
	end  func(x *fakeprovider.Exchange)
	code string // of a run
	ends bool   // the provider's HTTP answer is whole
	lost bool   // what came before may be lost on the way
	late bool   // it is told as a timeout
}

func faults() []fault {
	end := (*fakeprovider.Exchange).EndChunks
	return []fault{
		// ST-17, faults row 19
		{name: "cut", code: "upstream_truncated", end: (*fakeprovider.Exchange).Close},
		{name: "reset", code: "upstream_truncated", lost: true, end: (*fakeprovider.Exchange).Reset},
		// ST-18: HTTP ended well, the answer didn't
		{name: "ends without its end", code: "upstream_truncated", ends: true, end: end},
		// ST-23
		{name: "reports an error", code: "upstream_error", ends: true, end: end, more: func(d fakeprovider.Dialect) string { return d.Failure("engine died") }},
		{name: "isn't of the dialect", code: "adapter_decode", ends: true, end: end, more: func(d fakeprovider.Dialect) string {
			if d.StreamType() == "text/event-stream" {
				return "data: {]\n\n"
			}
			return "{]\n"
		}},
		{name: "falls silent", code: "idle_timeout", late: true, end: func(x *fakeprovider.Exchange) { <-x.Gone(); x.Close() }},
	}
}

// then is what the provider does.
func (f *fault) then(x *fakeprovider.Exchange, d fakeprovider.Dialect) {
	if f.more != nil {
		x.Chunk(f.more(d))
	}
	f.end(x)
}

// before is how many pieces of a stream come up to the second piece of text.
func before(d fakeprovider.Dialect) int {
	switch d.(type) {
	case fakeprovider.OpenAI:
		return 3 // the role is told first
	case fakeprovider.Anthropic:
		return 5 // the message, a ping and the block begin first
	}
	return 2
}

// impatient has nodes that don't wait long for a provider.
var impatient = harness.Options{NodeTimers: "{probe_interval: 1h, backoff_start: 20ms, first_byte: 3s, idle: 3s}"}

// What breaks off never looks like a whole answer: a stream has what came until then, tells why in the caller's dialect,
// has no end mark, and its connection is cut. Who asked for one object gets an error. A tunnel passes on what it got, and
// is cut where the provider was.
func TestPairsTellOfFailures(t *testing.T) {
	t.Parallel()
	s := sayings()["text"]
	eachPair(t, impatient, 1, func(t *testing.T, p *pair) {
		for _, f := range faults() {
			p.says(fakeprovider.Breaks(s, before, f.then))
			a := p.ask(p.request(chatOf(true)))
			if p.tunnel() {
				p.passedOn(t, &f, a)
				continue
			}
			p.broken(t, &f, "Hello naïve café,", a)
			a = p.ask(p.request(chatOf(false)))
			status := 502
			if f.late {
				status = 504
			}
			p.wantFailure(t, a, status, f.code)
			wantLog(t, p.ended(a.Header), map[string]any{"code": f.code, "origin": "provider", "attempts": 1})
			p.works(t) // or the adapter would be left in peace after some more of these
		}
	})
}

// passedOn checks a stream that was tunnelled.
func (p *pair) passedOn(t *testing.T, f *fault, a *harness.Answer) {
	t.Helper()
	d := fakeprovider.DialectOf(p.path)
	sent := strings.Join(d.Stream(sayings()["text"], chatOf(true))[:before(d)], "")
	if f.more != nil {
		sent += f.more(d)
	}
	switch got := string(a.Bytes); {
	case a.StatusCode != 200 || got != sent && !(f.lost && strings.HasPrefix(sent, got)):
		t.Errorf("%s: %d %q, want %q", f.name, a.StatusCode, got, sent)
	case f.ends && a.Cut != nil, !f.ends && !errors.Is(a.Cut, io.ErrUnexpectedEOF):
		t.Errorf("%s: the connection ends with %v", f.name, a.Cut)
	}
	code := f.code
	if f.ends {
		code = "ok" // what was said is the caller's to judge
	}
	wantLog(t, p.ended(a.Header), map[string]any{"code": code, "status": 200, "attempts": 1})
}

// broken checks the stream of a run that failed after some text had come.
func (p *pair) broken(t *testing.T, f *fault, came string, a *harness.Answer) {
	t.Helper()
	h, err := p.stream(a.Bytes, true)
	if a.StatusCode != 200 || err != nil || h.Whole || h.Finish != "" || h.Failed != f.code || h.Text != came && !(f.lost && strings.HasPrefix(came, h.Text)) {
		t.Errorf("%s: %d %v, %+v; want %q and %s:\n%s", f.name, a.StatusCode, err, h, came, f.code, shorten(a.Bytes))
	}
	switch clean := a.Cut == nil; {
	case p.name == "runs" && !clean:
		t.Errorf("%s: the run's last event is there, and then %v", f.name, a.Cut)
	case p.name != "runs" && (!errors.Is(a.Cut, io.ErrUnexpectedEOF) || strings.HasSuffix(string(a.Raw), "0\r\n\r\n")):
		t.Errorf("%s: the connection ends cleanly: %v", f.name, a.Cut)
	}
	wantLog(t, p.ended(a.Header), map[string]any{"code": f.code, "origin": "provider", "attempts": 1})
}

// An answer that comes whole where a stream was asked for is understood, and half of one isn't; nothing at all is waited
// for as long as the configuration says.
func TestPairsTakeWholeAnswers(t *testing.T) {
	t.Parallel()
	eachPair(t, impatient, 1, func(t *testing.T, p *pair) {
		s := sayings()["a call after words"]
		if p.path == "/api/generate" {
			s = sayings()["reasoning"]
		}
		whole := func(x *fakeprovider.Exchange) string {
			body := x.DialectOf().Whole(s)
			return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
		for _, stream := range []bool{true, false} {
			q := chatOf(stream)
			if !p.tunnel() {
				p.says(func(x *fakeprovider.Exchange) { fakeprovider.Raw([]byte(whole(x)))(x) })
				a := p.ask(p.request(q))
				h, err := p.read(a, stream, true)
				if err != nil {
					t.Fatal(err)
				}
				same(t, "whole", h, p.understood(s, q))
			}
			p.says(func(x *fakeprovider.Exchange) {
				all := whole(x)
				fakeprovider.CutAfter([]byte(all), len(all)-9, false)(x)
			})
			a := p.ask(p.request(q))
			if p.tunnel() {
				if a.StatusCode != 200 || a.Cut == nil {
					t.Errorf("half: %d %v %s", a.StatusCode, a.Cut, a.Bytes)
				}
			} else {
				p.wantFailure(t, a, 502, "upstream_truncated")
			}
		}
		p.says(fakeprovider.Silent(""))
		p.wantFailure(t, p.ask(p.request(chatOf(true))), 504, "first_byte_timeout")
		p.works(t)
	})
}
