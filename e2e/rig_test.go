package e2e

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/patience"
)

// limit bounds every wait that should take no time. It says nothing about speed: a loaded machine must not fail a test.
const limit = patience.Limit

// rig is an edge, a node and a provider, connected.
type rig struct {
	*harness.Edge
	t        *testing.T
	node     *harness.Node
	provider *fakeprovider.Provider
}

// setup is what a test wants otherwise than usual.
type setup struct {
	harness.Options
	places int      // max_concurrency; 0 = 4
	base   string   // appended to the provider's address
	scaled []string // of a linked rig: the timers that its scale is for; nil = all
	allow  string   // paths beyond those of its kind that the provider takes
}

// newRig starts all three. The script answers what callers ask for; the node's own questions are answered beside it.
// At the test's end everything must be idle.
func newRig(t *testing.T, script fakeprovider.Script, s setup) *rig {
	t.Helper()
	provider := fakeprovider.New(t, behindProbe(script))
	return newRigWith(t, provider, s)
}

func newRigWith(t *testing.T, provider *fakeprovider.Provider, s setup) *rig {
	t.Helper()
	r := assemble(t, provider, s)
	t.Cleanup(func() {
		if !t.Failed() {
			r.idle()
		}
	})
	return r
}

// assemble starts edge and node for a test that ends them itself.
func assemble(t *testing.T, provider *fakeprovider.Provider, s setup) *rig {
	t.Helper()
	if s.places == 0 {
		s.places = 4
	}
	if s.Adapters == "" {
		s.Adapters = "[" + strings.TrimSuffix(adapter("gpu", provider.URL()+s.base, s.places), "}") + ", allow_paths: [" + s.allow + "]}]"
	}
	if s.NodeTimers == "" {
		s.NodeTimers = "{probe_interval: 1h, backoff_start: 20ms}"
	}
	r := &rig{t: t, provider: provider}
	r.Edge, r.node = harness.Pair(t, s.Options)
	return r
}

// adapter is one entry of a node's adapters.
func adapter(name, url string, places int) string {
	return fmt.Sprintf("{name: %s, kind: openai, base_url: %q, max_concurrency: %d}", name, url, places)
}

// isProbe reports whether the node asks for itself: callers' requests for models end at the edge.
func isProbe(x *fakeprovider.Exchange) bool { return x.Method == http.MethodGet }

// behindProbe answers the node's own questions and leaves the rest to the script. The list of models is empty: any
// model may be asked for.
func behindProbe(script fakeprovider.Script) fakeprovider.Script {
	probe := fakeprovider.Routes(map[string]fakeprovider.Script{"GET /v1/models": fakeprovider.Models()})
	return func(x *fakeprovider.Exchange) {
		if isProbe(x) {
			probe(x)
			return
		}
		script(x)
	}
}

// seen returns the callers' requests that reached the provider.
func (r *rig) seen() []*fakeprovider.Exchange { return requests(r.provider) }

func requests(p *fakeprovider.Provider) []*fakeprovider.Exchange {
	var out []*fakeprovider.Exchange
	for _, x := range p.Exchanges() {
		if !isProbe(x) {
			out = append(out, x)
		}
	}
	return out
}

// idle waits until no place is held on either side and no work stream is left.
func (r *rig) idle() {
	r.t.Helper()
	r.AwaitIdle(limit)
	r.node.AwaitIdle(limit)
}

// dial connects a caller.
func (r *rig) dial() *harness.Caller {
	r.t.Helper()
	return harness.Dial(r.t, r.HTTP())
}

// ask sends a request on a connection of its own and returns the whole answer.
func (r *rig) ask(request string) *harness.Answer {
	r.t.Helper()
	a, err := harness.Ask(r.HTTP(), request, limit)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// ended returns the log line of the run that an answer belongs to.
func (r *rig) ended(header http.Header) map[string]any {
	r.t.Helper()
	return r.Log.Ended(r.t, header.Get("X-IOP-Run-Id"))
}

// chatBody is a streaming request for model m.
const chatBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`

// chat is a whole streaming request.
func chat(headers ...string) string { return harness.Post(chatPath, chatBody, headers...) }

const chatPath = "/v1/chat/completions"

// delta is one event with content.
func delta(text string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", text)
}

const (
	finish = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	done   = "data: [DONE]\n\n"
)

// usage is a chunk with token counts.
func usage(input, output int) string {
	return fmt.Sprintf("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n",
		input, output, input+output)
}

// feed is a provider that writes when the test says so.
type feed struct {
	begun  chan *fakeprovider.Exchange // each exchange, once its request was read
	pieces chan func(*fakeprovider.Exchange)
	last   chan func(*fakeprovider.Exchange)
	gone   chan time.Time // when the client was seen to leave
}

func newFeed(t *testing.T) *feed {
	return &feed{begun: make(chan *fakeprovider.Exchange, 64), pieces: make(chan func(*fakeprovider.Exchange)), last: make(chan func(*fakeprovider.Exchange)),
		gone: make(chan time.Time, 64)}
}

// script does what step sends, until the step closes the connection or the client leaves.
func (f *feed) script(x *fakeprovider.Exchange) {
	x.Body()
	f.begun <- x
	for !x.Closed() {
		select {
		case do := <-f.pieces:
			do(x)
		case do := <-f.last:
			do(x)
			return
		case <-x.Gone():
			f.gone <- time.Now()
			x.Close()
		}
	}
}

// step lets the provider do something and returns when that is done.
func (f *feed) step(t *testing.T, do func(*fakeprovider.Exchange)) time.Time {
	t.Helper()
	return f.take(t, f.pieces, do)
}

func (f *feed) take(t *testing.T, pieces chan func(*fakeprovider.Exchange), do func(*fakeprovider.Exchange)) time.Time {
	t.Helper()
	did := make(chan time.Time, 1)
	select {
	case pieces <- func(x *fakeprovider.Exchange) { do(x); did <- time.Now() }:
		return <-did
	case <-time.After(limit):
		t.Fatal("the provider isn't there to take a step")
	}
	return time.Time{}
}

// begin waits for a request and sends the head of a chunked answer.
func (f *feed) begin(t *testing.T, contentType string, lines ...string) *fakeprovider.Exchange {
	t.Helper()
	x := await(t, f.begun, "a request at the provider")
	f.step(t, func(x *fakeprovider.Exchange) { x.BeginStream(200, contentType, lines...) })
	return x
}

// chunk sends one chunk.
func (f *feed) chunk(t *testing.T, text string) time.Time {
	t.Helper()
	return f.step(t, func(x *fakeprovider.Exchange) { x.Chunk(text) })
}

// finish ends a chunked body; the connection stays.
func (f *feed) finish(t *testing.T) {
	t.Helper()
	f.take(t, f.last, (*fakeprovider.Exchange).EndChunks)
}

// await receives within the limit.
func await[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(limit):
		t.Fatalf("not within %v: %s", limit, what)
	}
	panic("unreachable")
}

// hold is a script that keeps requests until they are let go, in the order of their arrival.
type hold struct {
	arrived chan *fakeprovider.Exchange
	release chan struct{} // closed or one value for each request
}

func newHold() *hold {
	return &hold{arrived: make(chan *fakeprovider.Exchange, 1024), release: make(chan struct{})}
}

func (h *hold) script(x *fakeprovider.Exchange) {
	x.Body()
	h.arrived <- x
	select {
	case <-h.release:
		x.Reply(200, "application/json", `{"object":"chat.completion","choices":[]}`)
	case <-x.Gone():
		x.Close()
	}
}

// let answers n held requests.
func (h *hold) let(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case h.release <- struct{}{}:
		case <-time.After(limit):
			t.Fatal("no request is held")
		}
	}
}

// sum is how two bodies of any size are compared.
func sum[T string | []byte](body T) string {
	return fmt.Sprintf("%d bytes %x", len(body), sha256.Sum256([]byte(body)))
}

// sameBody compares an answer's body with what the provider sent.
func sameBody[T string | []byte](t *testing.T, got []byte, want T) {
	t.Helper()
	if string(got) == string(want) {
		return
	}
	if len(got)+len(want) < 4000 {
		t.Fatalf("got body %q\nwant %q", got, want)
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == string(want)[at] {
		at++
	}
	t.Fatalf("got %s, want %s; they differ from byte %d on", sum(got), sum(want), at)
}

// all runs n callers at once and returns when the last one is done.
func all(n int, caller func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { caller(i) })
	}
	wg.Wait()
}

// wantLog checks fields of a run's log line.
func wantLog(t *testing.T, line map[string]any, want map[string]any) {
	t.Helper()
	for key, value := range want {
		if fmt.Sprint(line[key]) != fmt.Sprint(value) {
			t.Errorf("the run's line has %s = %v, want %v: %v", key, line[key], value, line)
		}
	}
}

// noUsage checks that a run's line claims no token counts.
func noUsage(t *testing.T, line map[string]any) {
	t.Helper()
	for key := range line {
		if strings.HasSuffix(key, "_tokens") {
			t.Errorf("the run's line has %s = %v although nobody said so", key, line[key])
		}
	}
}
