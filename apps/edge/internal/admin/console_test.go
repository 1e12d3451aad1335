package admin

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
)

// The page and what belongs to it come without a key, the data only with one.
func TestConsoleIsServed(t *testing.T) {
	g := newRig(t, "0.0.0.0:8081")
	for _, from := range []string{"/", "/console"} {
		if resp, _ := g.ask("GET", from, "edge.example"); resp.StatusCode != 302 || resp.Header.Get("Location") != "console/" {
			t.Errorf("%s: %s to %q", from, resp.Status, resp.Header.Get("Location"))
		}
	}
	resp, page := g.ask("GET", "/console/", "edge.example")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(page, "<title>IOP Edge</title>") {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"#]+)"`).FindAllStringSubmatch(page, -1) {
		if resp, _ := g.ask("GET", "/console/"+m[1], "edge.example"); resp.StatusCode != 200 {
			t.Errorf("the page wants %s: %s", m[1], resp.Status)
		}
	}
	for _, name := range consoleNames() {
		if path.Ext(name) == ".js" {
			resp, text := g.ask("GET", "/console/"+name, "edge.example")
			if resp.Header.Get("Content-Type") != "text/javascript; charset=utf-8" {
				t.Errorf("%s: %v", name, resp.Header)
			}
			for _, m := range regexp.MustCompile(`from '\./([^']+)'`).FindAllStringSubmatch(text, -1) {
				if resp, _ := g.ask("GET", "/console/"+m[1], "edge.example"); resp.StatusCode != 200 {
					t.Errorf("%s wants %s: %s", name, m[1], resp.Status)
				}
			}
		}
	}
	for _, none := range []string{"/console/index.html", "/console/x.js", "/console/../admin.go", "/console/console/app.js"} {
		if resp, _ := g.ask("GET", none, "edge.example"); resp.StatusCode != 404 {
			t.Errorf("%s: %s", none, resp.Status)
		}
	}
}

// Each file is small and readable, and has nothing inline and nothing from elsewhere, which the policy wouldn't let through;
// no script makes markup of text.
func TestConsoleKeepsItsPolicy(t *testing.T) {
	inline := regexp.MustCompile(`(?i)<style|\bstyle=|\son[a-z]+=|<script(?:[^>]*src="[a-z]+\.js")?[^>]*>[^<]|javascript:`)
	elsewhere := regexp.MustCompile(`(?i)(?:src|href|import|url|from)\s*[=('"]+\s*['"(]*(?:https?:)?//`)
	markup := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\b|new Function|localStorage|sessionStorage|document\.cookie`)
	for _, name := range consoleNames() {
		text, err := fs.ReadFile(consoleFiles, "console/"+name)
		if err != nil || consoleTypes[path.Ext(name)] == "" {
			t.Fatalf("%s: %v", name, err)
		}
		if n := strings.Count(string(text), "\n"); n > 300 {
			t.Errorf("%s has %d lines", name, n)
		}
		for what, found := range map[string]*regexp.Regexp{"something inline": inline, "something from elsewhere": elsewhere, "a way to make markup, or to keep a key": markup} {
			if m := found.Find(text); m != nil && path.Ext(name) != ".svg" {
				t.Errorf("%s has %s: %s", name, what, m)
			}
		}
	}
}

// Every answer, also a refusal, tells browsers what they may do with it.
func TestBrowsersAreTold(t *testing.T) {
	g := newRig(t, "0.0.0.0:8081")
	for _, target := range []string{"/", "/console/", "/console/app.js", "/healthz", "/admin/v1/nodes", "/nothing"} {
		resp, _ := g.ask("GET", target, "edge.example")
		for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", target, name, got)
			}
		}
		csp := resp.Header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "trusted-types 'none'"} {
			if !slices.Contains(strings.Split(csp, "; "), part) {
				t.Errorf("%s: the policy lacks %s", target, part)
			}
		}
		if strings.Contains(csp, "unsafe") || resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %v", target, resp.Header)
		}
	}
}

// A link on another page leads to the console and to nothing else; another page can't ask for it in any other way.
func TestLinksLeadToThePageOnly(t *testing.T) {
	g := newRig(t, here)
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	for target, status := range map[string]int{"/console/": 200, "/": 302, "/console/app.js": 403, "/admin/v1/nodes": 403, "/admin/v1/snapshot": 403, "/healthz": 403} {
		if resp, _ := g.ask("GET", target, here, link...); resp.StatusCode != status {
			t.Errorf("a link to %s: %s", target, resp.Status)
		}
	}
	for _, other := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
		{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}, append(slices.Clone(link), "Origin", "http://evil.example")} {
		if resp, _ := g.ask("GET", "/console/", here, other...); resp.StatusCode != 403 {
			t.Errorf("%v: %s", other, resp.Status)
		}
	}
	if resp, _ := g.ask("GET", "/console/", "evil.example", link...); resp.StatusCode != 403 {
		t.Errorf("a link by another name: %s", resp.Status)
	}
}

// What changes something is refused to every other page, on each row that does; behind a proxy that has the TLS the page
// itself may.
func TestChangesComeFromThePageOnly(t *testing.T) {
	for _, e := range Endpoints() {
		if e.Method != http.MethodPost {
			continue
		}
		target := strings.Replace(e.Path, "{id}", "x", 1)
		for _, headers := range [][]string{{"Origin", "https://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "cross-site"},
			{"Origin", "http://127.0.0.1:9999"}, {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}} {
			g := newRig(t, here)
			g.runs = []service.RunView{{RunID: "x"}}
			if resp, _ := g.ask("POST", target, here, headers...); resp.StatusCode != 403 || len(g.cancelled)+len(g.drained)+len(g.released)+len(g.asked) > 0 {
				t.Errorf("%s %v: %s", target, headers, resp.Status)
			}
		}
	}
	g := newRig(t, "0.0.0.0:8081")
	g.runs = []service.RunView{{RunID: "x"}}
	const cancel = "/admin/v1/runs/x/cancel"
	own := []string{"Origin", "https://edge.example", "Sec-Fetch-Site", "same-origin", "Authorization", "Bearer " + adminKey}
	if resp, body := g.ask("POST", cancel, "edge.example", own...); resp.StatusCode != 202 {
		t.Errorf("its own page: %s %s", resp.Status, body)
	}
	if resp, _ := g.ask("POST", cancel, "edge.example", own[:4]...); resp.StatusCode != 401 {
		t.Errorf("without a key: %s", resp.Status)
	}
}

// The snapshot's parts are those of the other endpoints, the lists of runs bounded, and what hangs comes first.
func TestSnapshot(t *testing.T) {
	g := newRig(t, here)
	g.state = config.NewState(&config.Edge{Routes: []config.Route{{Model: "m", Queue: config.Queue{Depth: 4, Wait: time.Minute}}}}, 1, nil)
	g.nodes = []node.NodeView{{ID: "a", State: node.StateReady}}
	now := time.Now()
	for i := range mostLive + 10 {
		g.runs = append(g.runs, service.RunView{RunID: string(rune('A' + i)), Live: true, State: service.StateRunning, Route: "m", CreatedAt: now.Add(-time.Duration(i))})
	}
	for range mostEnded + 10 {
		g.runs = append(g.runs, service.RunView{RunID: "ended", Code: "ok"})
	}
	g.bus.Publish(events.Event{Kind: events.KindReady})
	_, body := g.ask("GET", "/admin/v1/snapshot", here)
	var v snapshotView
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatal(err)
	}
	if v.Live.Total != mostLive+10 || len(v.Live.Runs) != mostLive || v.Ended.Total != mostEnded+10 || len(v.Ended.Runs) != mostEnded {
		t.Errorf("%d of %d live, %d of %d ended", len(v.Live.Runs), v.Live.Total, len(v.Ended.Runs), v.Ended.Total)
	}
	if v.Live.Runs[0].RunID != string(rune('A'+mostLive+9)) {
		t.Errorf("the oldest isn't first but %s", v.Live.Runs[0].RunID)
	}
	if v.Version != "test" || v.At.Before(now) || !strings.HasSuffix(v.EventID, "-1") || len(v.Nodes) != 1 || len(v.Reasons) != 0 {
		t.Errorf("%+v", v)
	}
	if len(v.Queue.Routes) != 1 || v.Queue.Routes[0].Running != mostLive+10 {
		t.Errorf("%+v", v.Queue)
	}
	if empty := newRig(t, here); true {
		_, body := empty.ask("GET", "/admin/v1/snapshot", here)
		if strings.Contains(body, "null") {
			t.Errorf("a list that is null: %s", body)
		}
	}
}

// protocol.md 7: what deserves attention is said, and nothing is said when nothing does.
func TestWarnings(t *testing.T) {
	since := time.Now()
	good := node.NodeView{ID: "good", State: node.StateReady, Version: "test", Since: &since, Adapters: []node.AdapterView{{Available: true}}}
	for _, c := range []struct {
		name  string
		node  node.NodeView
		place admission.PlaceSnapshot
		own   []string
		want  string // part of the only warning, "" = there is none
	}{
		{"nothing", node.NodeView{ID: "b", State: node.StateOffline, Version: "old"}, admission.PlaceSnapshot{}, nil, ""},
		{"unresponsive", node.NodeView{ID: "b", State: node.StateUnresponsive}, admission.PlaceSnapshot{}, nil, "the node b is connected and doesn't answer"},
		{"not ready", node.NodeView{ID: "b", State: node.StateNotReady}, admission.PlaceSnapshot{}, nil, "the node b is connected and doesn't say"},
		{"unconfirmed", node.NodeView{}, admission.PlaceSnapshot{Place: admission.Place{Node: "n", Adapter: "a"}, Unconfirmed: 2}, nil, "a on n: places held by runs that are over"},
		{"broken", node.NodeView{}, admission.PlaceSnapshot{Place: admission.Place{Node: "n", Adapter: "a"}, Broken: &admission.Broken{Failures: 5}}, nil, "failed 5 times"},
		{"mixed", node.NodeView{ID: "b", State: node.StateReady, Version: "v2", Since: &since}, admission.PlaceSnapshot{}, nil, "test, v2"},
		{"its own", node.NodeView{}, admission.PlaceSnapshot{}, []string{"the certificate ends"}, "the certificate ends"},
	} {
		g := newRig(t, here)
		g.nodes, g.queue.Places, g.warnings = []node.NodeView{good, c.node}, []admission.PlaceSnapshot{c.place}, c.own
		var v snapshotView
		_, body := g.ask("GET", "/admin/v1/snapshot", here)
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		if (c.want == "") != (len(v.Warnings) == 0) || c.want != "" && (len(v.Warnings) != 1 || !strings.Contains(v.Warnings[0], c.want)) {
			t.Errorf("%s: %q", c.name, v.Warnings)
		}
	}
	idle, drained := good, good
	idle.Adapters, drained.Drained = []node.AdapterView{{Reason: "connection refused"}}, true
	for _, n := range []node.NodeView{idle, drained} {
		g := newRig(t, here)
		g.nodes = []node.NodeView{n}
		if _, body := g.ask("GET", "/admin/v1/snapshot", here); !strings.Contains(body, "no adapter of any node takes work") {
			t.Errorf("%s", body)
		}
	}
}

// Who waits is counted by route, in the order of the file; runs without a route by their adapter.
func TestQueueByRoute(t *testing.T) {
	g := newRig(t, here)
	g.state = config.NewState(&config.Edge{Routes: []config.Route{{Model: "b", Queue: config.Queue{Depth: 4, Wait: time.Minute}}, {Model: "a", FailFast: true}}}, 1, nil)
	long := time.Now().Add(-time.Hour)
	g.runs = []service.RunView{
		{Live: true, State: service.StateQueued, Route: "b", CreatedAt: time.Now()}, {Live: true, State: service.StateQueued, Route: "b", CreatedAt: long},
		{Live: true, State: service.StateRunning, Route: "b", CreatedAt: long}, {Live: true, State: service.StateDetached, Adapter: "p"},
		{Live: true, State: service.StateQueued, Route: "removed"}, {State: service.StateComplete, Route: "a"},
	}
	got := g.queueRoutes()
	if len(got) != 4 || got[0].LongestMS < 3_600_000 || got[0].LongestMS > 3_700_000 || got[3].LongestMS == 0 {
		t.Fatalf("%+v", got)
	}
	for i := range got {
		got[i].LongestMS = 0
	}
	want := []waitView{{Route: "b", Waiting: 2, Running: 1, Depth: 4, WaitMS: 60_000}, {Route: "a", FailFast: true},
		{Adapter: "p", Running: 1, Depth: config.RunQueueDepth}, {Route: "removed", Waiting: 1}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func (g *rig) queueRoutes() []waitView {
	g.t.Helper()
	var v queueView
	_, body := g.ask("GET", "/admin/v1/queue", here)
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		g.t.Fatal(err)
	}
	return v.Routes
}
