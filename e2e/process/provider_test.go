//go:build e2e

package process

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/procs"
)

const roleProvider = "provider"

// addrVariable is where the provider listens; "" is a free port.
const addrVariable = "IOP_E2E_ADDR"

// What a request's message makes the provider do. Whatever waits, waits until it is released.
const (
	modeStream = "stream" // events at once and for ever; when released, the end
	modeSilent = "silent" // nothing; when released, a short stream
	modeAtEnd  = "at end" // a whole stream but for its last chunk; when released, that
	modeJSON   = "json"   // nothing; when released, one JSON object
	modeBulk   = "bulk"   // a megabyte of numbered events as fast as they are taken, then the end
	modeFlood  = "flood"  // the same without an end
)

// providerState is what the provider process tells of itself.
type providerState struct {
	Begun int `json:"begun"` // requests read
	Open  int `json:"open"`  // requests being answered
	Whole int `json:"whole"` // answered to their end
	Gone  int `json:"gone"`  // left by their client
}

// playProvider is the provider's main.
func playProvider() int {
	f := &fake{released: make(chan struct{}), ended: make(chan struct{})}
	p, err := fakeprovider.StartOn(cmp.Or(os.Getenv(addrVariable), procs.OwnHost()+":0"), f.script)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintf(os.Stderr, `{"message":"provider listens","addr":%q}`+"\n", p.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin) // until whoever started it is gone
	p.Close()
	return 0
}

// fake is the script of the provider process.
type fake struct {
	mu       sync.Mutex
	released chan struct{} // closed and replaced by a release
	ended    chan struct{} // the same for those that only lack their end
	state    providerState
}

func (f *fake) script(x *fakeprovider.Exchange) {
	switch {
	case x.Target == "/test/release":
		f.letGo(&f.released)
		f.letGo(&f.ended)
		x.Reply(200, "application/json", "{}")
	case x.Target == "/test/release-end":
		f.letGo(&f.ended)
		x.Reply(200, "application/json", "{}")
	case x.Target == "/test/state":
		f.mu.Lock()
		text, _ := json.Marshal(f.state)
		f.mu.Unlock()
		x.Reply(200, "application/json", string(text))
	case x.Method == "GET":
		fakeprovider.Models("m")(x)
	default:
		f.chat(x)
	}
}

func (f *fake) letGo(c *chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(*c)
	*c = make(chan struct{})
}

func (f *fake) count(do func(s *providerState)) (released, ended chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(&f.state)
	return f.released, f.ended
}

func (f *fake) chat(x *fakeprovider.Exchange) {
	body := string(x.Body())
	released, ended := f.count(func(s *providerState) { s.Begun++; s.Open++ })
	whole := answer(x, body, released, ended)
	f.count(func(s *providerState) {
		s.Open--
		if whole {
			s.Whole++
		} else {
			s.Gone++
		}
	})
}

// answer says whether the client took all of it.
func answer(x *fakeprovider.Exchange, body string, released, ended <-chan struct{}) bool {
	mode := func(m string) bool { return strings.Contains(body, `"content":"`+m+`"`) }
	switch {
	case mode(modeJSON):
		if !wait(x, released) {
			return false
		}
		x.Reply(200, "application/json", jsonAnswer)
		return true
	case mode(modeSilent):
		if !wait(x, released) {
			return false
		}
		return stream(x, 3, 0)
	case mode(modeBulk):
		return stream(x, bulkEvents, bulkPadding)
	case mode(modeFlood):
		return stream(x, math.MaxInt, bulkPadding)
	case mode(modeAtEnd):
		x.BeginStream(200, "text/event-stream")
		x.Chunk(events(1, 5, 0) + doneEvent)
		if !wait(x, ended) {
			return false
		}
		x.EndChunks()
		x.Close()
		return true
	}
	x.BeginStream(200, "text/event-stream")
	n := 1
	for ; x.Pause(eventPause); n++ {
		x.Chunk(events(n, n, 0))
		select {
		case <-released:
			x.Chunk(doneEvent)
			x.EndChunks()
			x.Close()
			return true
		default:
		}
	}
	x.Close()
	return false
}

func wait(x *fakeprovider.Exchange, released <-chan struct{}) bool {
	select {
	case <-released:
		return true
	case <-x.Gone():
		x.Close()
		return false
	}
}

// stream sends a whole stream of n events.
func stream(x *fakeprovider.Exchange, n, padding int) bool {
	x.BeginStream(200, "text/event-stream")
	for i := 1; i <= n; i++ {
		if _, err := x.Write(chunk(events(i, i, padding))); err != nil {
			x.Close()
			return false
		}
	}
	x.Chunk(doneEvent)
	x.EndChunks()
	x.Close()
	return true
}

func chunk(text string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(text), text) }

const (
	eventPause  = 10 * time.Millisecond
	doneEvent   = "data: [DONE]\n\n"
	jsonAnswer  = `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"whole"},"finish_reason":"stop"}]}`
	bulkEvents  = 256
	bulkPadding = 4000
)

// events are the events from the first to the last number, each padded.
func events(first, last, padding int) string {
	var b bytes.Buffer
	for n := first; n <= last; n++ {
		fmt.Fprintf(&b, "data: {\"n\":%d,\"pad\":%q}\n\n", n, strings.Repeat("x", padding))
	}
	return b.String()
}

// provider is a running provider process as the tests see it.
type provider struct {
	*procs.Process
	t      *testing.T
	addr   string
	prefix []string
	dial   dialer
}

// startProvider starts one; prefix puts it somewhere else, and dial is how to get there.
func startProvider(t *testing.T, prefix []string, dial dialer) *provider {
	t.Helper()
	p := &provider{t: t, prefix: prefix, dial: dial}
	p.restart()
	return p
}

// restart starts the process again where it was.
func (p *provider) restart() {
	p.t.Helper()
	p.Process = startRole(p.t, roleProvider, p.prefix, addrVariable+"="+p.addr)
	p.addr = said(p.t, p.Process, "provider listens", 1).Str("addr")
}

func (p *provider) url() string { return "http://" + p.addr }

// state asks the provider what it does.
func (p *provider) state() providerState {
	p.t.Helper()
	var s providerState
	if err := json.Unmarshal(get(p.t, p.dial, p.addr, "/test/state"), &s); err != nil {
		p.t.Fatal(err)
	}
	return s
}

// release lets everything go on that waits.
func (p *provider) release() {
	p.t.Helper()
	get(p.t, p.dial, p.addr, "/test/release")
}

// awaitOpen waits until the provider answers exactly n requests, and returns how long that took.
func (p *provider) awaitOpen(n int, within time.Duration) time.Duration {
	p.t.Helper()
	return eventually(p.t, within, fmt.Sprintf("the provider answers %d requests", n), func() bool { return p.state().Open == n })
}

// said waits for the nth log line with a message.
func said(t *testing.T, p *procs.Process, message string, nth int) procs.Entry {
	t.Helper()
	ctx, cancel := contextWithin(t, limit)
	defer cancel()
	entry, err := p.Wait(ctx, message, nth)
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// dialer connects to an address in a place of its own; nil is here.
type dialer func(addr string) (net.Conn, error)

func (d dialer) connect(addr string) (net.Conn, error) {
	if d == nil {
		return net.DialTimeout("tcp", addr, limit)
	}
	return d(addr)
}
