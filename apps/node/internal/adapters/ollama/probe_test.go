package ollama

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

func jsonAnswer(status int, body string) fakeprovider.Script {
	return fakeprovider.Answer(status, "application/json", body)
}

// table is an Ollama with the recorded models, of which the named answer is what is in memory.
func table(t *testing.T, ps string) map[string]fakeprovider.Script {
	t.Helper()
	return map[string]fakeprovider.Script{
		"/api/version": fixture(t, "ollama-0.17.4/version"), "/api/tags": fixture(t, "ollama-0.17.4/tags"),
		"/api/ps": fixture(t, "ollama-0.17.4/"+ps), "/api/show": fixture(t, "ollama-0.17.4/show"),
	}
}

// with is a table with another answer to one path.
func with(table map[string]fakeprovider.Script, path string, s fakeprovider.Script) map[string]fakeprovider.Script {
	table[path] = s
	return table
}

func TestProbe(t *testing.T) {
	const own = 32768 // of the recorded model; in memory it has 4096
	available := func(models ...execution.Model) execution.Capabilities {
		return execution.Capabilities{Available: true, Version: "ollama 0.17.4", Models: models}
	}
	down := execution.Capabilities{Version: "unknown"}
	slow, tiny := execution.Model{Name: "slow:latest", Context: own}, execution.Model{Name: "tiny:latest", Context: own}
	inMemory := execution.Model{Name: "tiny:latest", Loaded: true, Context: 4096}
	untold := func(models ...execution.Model) execution.Capabilities {
		for i := range models {
			models[i].Context = 0
		}
		return available(models...)
	}
	noVersion := available(slow, tiny)
	noVersion.Version = "unknown"
	cases := map[string]struct {
		table  map[string]fakeprovider.Script
		want   execution.Capabilities
		reason string
	}{
		"nothing in memory":    {table(t, "ps-empty"), available(slow, tiny), ""},
		"one in memory":        {table(t, "ps-loaded"), available(slow, inMemory), ""},
		"the other in memory":  {table(t, "ps-after-unload"), available(execution.Model{Name: "slow:latest", Loaded: true, Context: 4096}, tiny), ""},
		"no list of memory":    {with(table(t, "ps-empty"), "/api/ps", jsonAnswer(404, "404 page not found")), available(slow, tiny), ""},
		"no models":            {with(table(t, "ps-empty"), "/api/tags", jsonAnswer(200, `{"models":[]}`)), execution.Capabilities{Available: true, Version: "ollama 0.17.4", Models: []execution.Model{}}, ""},
		"a model with no name": {with(table(t, "ps-empty"), "/api/tags", jsonAnswer(200, `{"models":[{"digest":"x"},{"name":"m"}]}`)), available(execution.Model{Name: "m"}), ""},
		"no description":       {with(table(t, "ps-empty"), "/api/show", fixture(t, "ollama-0.17.4/show-404")), untold(slow, tiny), ""},
		"odd description":      {with(table(t, "ps-empty"), "/api/show", jsonAnswer(200, `{"model_info":{"general.architecture":"x","x.context_length":"y"}}`)), untold(slow, tiny), ""},
		"less by parameters": {with(table(t, "ps-empty"), "/api/show", jsonAnswer(200, `{"parameters":"temperature 1\nnum_ctx                        8192","model_info":{"general.architecture":"x","x.context_length":9000}}`)),
			available(execution.Model{Name: "slow:latest", Context: 8192}, execution.Model{Name: "tiny:latest", Context: 8192}), ""},
		"not more by parameters": {with(table(t, "ps-empty"), "/api/show", jsonAnswer(200, `{"parameters":"num_ctx 99999","model_info":{"general.architecture":"x","x.context_length":9000}}`)),
			available(execution.Model{Name: "slow:latest", Context: 9000}, execution.Model{Name: "tiny:latest", Context: 9000}), ""},
		"no version":         {with(table(t, "ps-empty"), "/api/version", jsonAnswer(404, "404 page not found")), noVersion, ""},
		"odd version":        {with(table(t, "ps-empty"), "/api/version", jsonAnswer(200, `{"version":7}`)), noVersion, ""},
		"wants a key":        {map[string]fakeprovider.Script{"/api/version": jsonAnswer(401, "{}")}, execution.Capabilities{Available: true, Version: "unknown"}, ""},
		"its list wants one": {with(table(t, "ps-empty"), "/api/tags", jsonAnswer(401, "{}")), available(), ""},
		"or refuses it":      {with(table(t, "ps-empty"), "/api/tags", jsonAnswer(403, "{}")), available(), ""},
		"broken":             {map[string]fakeprovider.Script{"/api/version": jsonAnswer(502, "{}")}, down, "502"},
		"moved":              {map[string]fakeprovider.Script{"/api/version": fakeprovider.Answer(301, "text/html", "", "Location: https://x/")}, down, "redirects"},
		"no Ollama":          {nil, down, "404 to GET /api/tags"},
		"a web page":         {map[string]fakeprovider.Script{"/api/version": fakeprovider.Answer(200, "text/html", "<html>"), "/api/tags": fakeprovider.Answer(200, "text/html", "<html>")}, down, "isn't a list of models"},
		"another JSON":       {with(table(t, "ps-empty"), "/api/tags", jsonAnswer(200, `{"data":[]}`)), down, "isn't a list of models"},
		"a list that dies":   {with(table(t, "ps-empty"), "/api/tags", func(x *fakeprovider.Exchange) { x.Reset() }), down, "reset"},
		"an endless answer":  {with(table(t, "ps-empty"), "/api/tags", fakeprovider.Endless(0, strings.Repeat("x", 64<<10))), down, "over"},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.New(t, fakeprovider.Routes(k.table))
			got := at(t, p).Probe(t.Context())
			if !strings.Contains(got.Reason, k.reason) || (got.Reason == "") != (k.reason == "") {
				t.Errorf("reason %q, want %q", got.Reason, k.reason)
			}
			got.Reason = ""
			if d := cmp.Diff(k.want, got); d != "" {
				t.Error(d)
			}
			neverRuns(t, p)
		})
	}
}

// neverRuns holds that a probe asks only what loads nothing.
func neverRuns(t *testing.T, p *fakeprovider.Provider) {
	t.Helper()
	for _, x := range p.Exchanges() {
		switch x.Method + " " + x.Target {
		case "GET /api/version", "GET /api/tags", "GET /api/ps", "POST /api/show":
		default:
			t.Errorf("the probe sent %s %s", x.Method, x.Target)
		}
	}
}

// shows returns the models that were asked about, in order.
func shows(p *fakeprovider.Provider) (asked []string) {
	for _, x := range p.Exchanges() {
		if x.Target == "/api/show" {
			asked = append(asked, strings.TrimSuffix(strings.TrimPrefix(string(x.Received()), `{"model":"`), `"}`))
		}
	}
	return asked
}

// tagsOf lists n models, m0 and so on, whose digests have a name of their own.
func tagsOf(n int, generation string) string {
	var b strings.Builder
	b.WriteString(`{"models":[`)
	for i := range n {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, `{"name":"m%d:latest","digest":"%s-%d"}`, i, generation, i)
	}
	return b.String() + "]}"
}

// A model is asked about once, a few in each probe, and again only when it has become another.
func TestModelsAreAskedAboutOnce(t *testing.T) {
	const n = 2*maxShows + 3
	p := fakeprovider.New(t, fakeprovider.Routes(with(table(t, "ps-empty"), "/api/tags", jsonAnswer(200, tagsOf(n, "a")))))
	a := at(t, p)
	known := func() (k int) {
		for _, m := range a.Probe(t.Context()).Models {
			if m.Context == 32768 {
				k++
			}
		}
		return k
	}
	for _, want := range []int{maxShows, 2 * maxShows, n, n, n} {
		if got := known(); got != want || len(shows(p)) != want {
			t.Fatalf("%d are known, %d were asked about, want %d", got, len(shows(p)), want)
		}
	}
	p.Use(fakeprovider.Routes(with(table(t, "ps-empty"), "/api/tags", jsonAnswer(200, tagsOf(2, "b")))))
	if got := known(); got != 2 || len(shows(p)) != n+2 {
		t.Errorf("%d are known of two that changed, %d were asked about", got, len(shows(p)))
	}
	if len(a.contexts.known) != 2 {
		t.Errorf("%d models are remembered, two are there", len(a.contexts.known))
	}
}

// A model in memory tells its context unasked.
func TestModelInMemoryIsNotAskedAbout(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Routes(table(t, "ps-loaded")))
	if at(t, p).Probe(t.Context()); strings.Join(shows(p), " ") != "slow:latest" {
		t.Errorf("asked about %q", shows(p))
	}
}

// A model that gets no answer holds up neither the probe nor the others, and is asked about again.
func TestModelThatIsSlowToTell(t *testing.T) {
	answers := with(table(t, "ps-empty"), "/api/tags", jsonAnswer(200, tagsOf(3, "a")))
	show := answers["/api/show"]
	var dead atomic.Bool
	dead.Store(true)
	answers["/api/show"] = func(x *fakeprovider.Exchange) {
		if body := x.Body(); dead.Load() && strings.Contains(string(body), "m0") {
			x.Reset()
			return
		}
		show(x)
	}
	p := fakeprovider.New(t, fakeprovider.Routes(answers))
	a := at(t, p)
	for range 2 {
		if c := a.Probe(t.Context()); !c.Available || len(c.Models) != 3 {
			t.Fatalf("%+v", c)
		}
	}
	c := a.Probe(t.Context())
	if c.Models[0].Context != 0 || c.Models[1].Context == 0 || c.Models[2].Context == 0 {
		t.Errorf("%+v", c.Models)
	}
	dead.Store(false)
	if c := a.Probe(t.Context()); c.Models[0].Context == 0 {
		t.Errorf("%+v", c.Models)
	}
}

// OL-01: a provider that is busy with a model answers late; how long it may take is for who asks to say.
func TestProbeEndsWithItsContext(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Silent(""))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := at(t, p).Probe(ctx); got.Available || !strings.Contains(got.Reason, "no answer in time to GET /api/version") {
		t.Errorf("%+v", got)
	}
}

// logged keeps what is logged.
type logged struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// The auto kind finds an Ollama when it comes, says once what it found, and takes nothing else for one.
func TestAuto(t *testing.T) {
	gone := func(x *fakeprovider.Exchange) { x.Reset() }
	p := fakeprovider.New(t, gone)
	var log logged
	a, err := New(Config{BaseURL: p.URL(), Auto: true, Log: zerolog.New(&log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	for name, k := range map[string]struct {
		script fakeprovider.Script
		reason string
	}{
		"nothing":        {gone, "no Ollama on this node's machine at " + p.URL() + ": "},
		"something else": {fakeprovider.Answer(404, "text/plain", "no"), "no Ollama on this node's machine"},
		"an imitation":   {fakeprovider.Routes(with(table(t, "ps-empty"), "/api/version", jsonAnswer(404, ""))), "doesn't say that it is an Ollama"},
		"wants a key":    {jsonAnswer(http.StatusUnauthorized, "{}"), "doesn't say that it is an Ollama"},
	} {
		p.Use(k.script)
		if got := a.Probe(t.Context()); got.Available || !strings.Contains(got.Reason, k.reason) || got.Version != "unknown" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if log.String() != "" {
		t.Errorf("logged: %s", log.String())
	}
	there := fakeprovider.Routes(table(t, "ps-loaded"))
	for range 2 {
		for range 2 {
			p.Use(there)
			if got := a.Probe(t.Context()); !got.Available || len(got.Models) != 2 {
				t.Errorf("%+v", got)
			}
		}
		p.Use(gone) // it goes and comes back
		a.Probe(t.Context())
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"version":"ollama 0.17.4","models":2,"names":"slow:latest tiny:latest"`) {
		t.Errorf("logged: %s", got)
	}
	p.Use(fakeprovider.Routes(with(table(t, "ps-loaded"), "/api/version", jsonAnswer(200, `{"version":"0.18.0"}`))))
	a.Probe(t.Context())
	if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "0.18.0") {
		t.Errorf("logged after it became another: %s", got)
	}
}

// Without a configuration of its own the auto kind looks on Ollama's default port.
func TestAutoLooksAtTheDefault(t *testing.T) {
	a, err := New(Config{Auto: true})
	if err != nil || a.url != DefaultURL {
		t.Fatalf("%v, %+v", err, a)
	}
	a.Close()
}

// What a node can't reach gives a failure that says so, whichever way it is asked. (CP-12)
func TestNothingThere(t *testing.T) {
	gone := fakeprovider.New(t, nil)
	gone.Close()
	a := build(t, gone.URL(), zerolog.Nop()).(*Provider)
	t.Cleanup(a.Close)
	r := adaptertest.NewRecorder()
	err := a.Command(t.Context(), adaptertest.Get("/api/tags"), r)
	if f, ok := err.(*execution.Failure); !ok || f.Code != execution.CodeUpstreamConnect || !f.NothingSent || len(r.End(err)) > 0 {
		t.Errorf("%v", err)
	}
}
