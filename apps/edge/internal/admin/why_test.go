package admin

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// ready is what a node says that can serve the model m.
func ready(id string, adapters ...node.AdapterView) node.NodeView {
	return node.NodeView{ID: id, State: node.StateReady, Generation: 3, Adapters: adapters}
}

func usable(name string, models ...string) node.AdapterView {
	a := node.AdapterView{Name: name, Available: true, Capacity: 4}
	for i, m := range models {
		a.Models = append(a.Models, node.ModelView{Name: m, Loaded: i == 0})
	}
	return a
}

func placeOf(n, a string, inFlight, capacity int) admission.PlaceSnapshot {
	return admission.PlaceSnapshot{Place: admission.Place{Node: n, Adapter: a}, Generation: 3, InFlight: inFlight, Capacity: capacity, Candidate: true}
}

// why asks, with one node n whose adapter is a.
func (g *rig) why(t *testing.T, query string) (v whyView) {
	t.Helper()
	resp, body := g.ask("GET", "/admin/v1/why?"+query, here)
	if resp.StatusCode != 200 {
		t.Fatalf("%s: %s %s", query, resp.Status, body)
	}
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// codes are the reasons of a candidate.
func codes(c whyCandidate) (all []string) {
	for _, r := range c.Reasons {
		if r.Text == "" {
			r.Code += " (no text)"
		}
		all = append(all, r.Code)
	}
	return all
}

// world is what there is to be asked about.
type world struct {
	record  config.NodeRecord
	adapter config.Adapter
	route   config.Route
	view    *node.NodeView
	place   *admission.PlaceSnapshot
}

// whyCase is one way in which an adapter can be no candidate, or can.
type whyCase struct {
	name   string
	change func(w *world)
	query  string
	want   string // codes
	says   string // in the texts
	off    bool   // not on the route
}

func whyCases() []whyCase {
	return []whyCase{
		{name: "all is well"},
		{name: "route asks for another adapter", change: func(w *world) { w.route.Adapter = "b" }, want: "other_adapter", says: "the adapter b", off: true},
		{name: "route names other nodes", change: func(w *world) { w.route.Nodes = []string{"x", "y"} }, want: "other_node", says: "x, y", off: true},
		{name: "a label is missing", change: func(w *world) { w.route.Labels = map[string]string{"gpu": "h100"} }, want: "other_labels", says: "no label gpu; the route wants h100", off: true},
		{name: "a label differs", change: func(w *world) { w.route.Labels = map[string]string{"site": "there"} }, want: "other_labels", says: "label site is here; the route wants there", off: true},
		{name: "the label fits", change: func(w *world) { w.route.Labels = map[string]string{"site": "here"} }},
		{name: "configured targets", change: func(w *world) { w.adapter.Targets = []string{"x"} }, want: "not_offered", says: "configured targets are x, not m"},
		{name: "configured target", change: func(w *world) { w.adapter.Targets = []string{"m:latest"} }},
		{name: "models", change: func(w *world) { w.view.Adapters[0] = usable("a", "p", "q", "r", "s", "t", "u", "v") }, want: "not_offered", says: "its provider has p, q, r, s, t and 2 more, not m"},
		{name: "models unknown", change: func(w *world) { w.view.Adapters[0] = usable("a") }},
		{name: "path not carried", query: "&path=/v1/embeddings", change: func(w *world) { w.adapter.Kind = "anthropic" }, want: "not_carried", says: "of the kind anthropic doesn't carry /v1/embeddings"},
		{name: "path not carried, but it can be a run", query: "&path=/as-run", change: func(w *world) { w.adapter.Kind = "anthropic" }},
		{name: "path allowed", query: "&path=/tokenize", change: func(w *world) { w.adapter.AllowPaths = []string{"/tokenize"} }},
		{name: "never connected", change: func(w *world) { *w.view = node.NodeView{ID: "n", State: node.StateOffline}; w.place = nil }, want: "offline"},
		{name: "unknown to the registry", change: func(w *world) { w.view = nil; w.place = nil }, want: "offline"},
		{name: "disabled", change: func(w *world) { *w.view = node.NodeView{ID: "n", State: node.StateDisabled} }, want: "disabled"},
		{name: "offline and drained", change: func(w *world) { *w.view = node.NodeView{ID: "n", State: node.StateOffline, Drained: true} }, want: "offline drained"},
		{name: "drained", change: func(w *world) { w.view.State, w.view.Drained, w.place.Candidate = node.StateDraining, true, false }, want: "drained", says: "ctl drain n --undo"},
		{name: "drains", change: func(w *world) {
			w.view.State, w.view.Reason, w.place.Candidate = node.StateDraining, "the node is stopping", false
		}, want: "draining", says: "the node is stopping"},
		{name: "not ready", change: func(w *world) { w.view.State, w.view.Reason = node.StateNotReady, "not within the limit" }, want: "not_ready", says: "not within the limit"},
		{name: "unresponsive", change: func(w *world) { w.view.State, w.view.Reason = node.StateUnresponsive, "doesn't answer" }, want: "unresponsive"},
		{name: "provider down", change: func(w *world) {
			w.view.Adapters[0].Available, w.view.Adapters[0].Reason, w.place.Candidate = false, "connection refused", false
		}, want: "adapter_unavailable", says: "connection refused"},
		{name: "broken", change: func(w *world) {
			w.place.Broken = &admission.Broken{Failures: 5, Why: "upstream_connect: refused", Until: time.Now().Add(time.Minute)}
		}, want: "broken", says: "failed 5 times in a row (upstream_connect: refused); one request may try it in "},
		{name: "tried", change: func(w *world) { w.place.Broken = &admission.Broken{Failures: 5, Trying: true} }, want: "broken", says: "one request tries it now"},
		{name: "may be tried", change: func(w *world) { w.place.Broken = &admission.Broken{Failures: 5, Until: time.Now().Add(-time.Second)} }},
		{name: "saturated", change: func(w *world) { w.place.Saturated = true }, want: "saturated"},
		{name: "full", change: func(w *world) { w.place.InFlight = 4 }, want: "full", says: "4 of 4 places are taken"},
		{name: "full of what isn't confirmed", change: func(w *world) { w.place.InFlight, w.place.Unconfirmed = 5, 2 }, want: "full", says: "5 of 4 places are taken, 2 by runs whose end"},
		{name: "no places", change: func(w *world) { w.place.Capacity = 0 }, want: "no_places"},
		{name: "places of an earlier connection", change: func(w *world) { w.place.InFlight, w.place.Generation = 4, 2 }},
		{name: "much at once", change: func(w *world) {
			w.route.Adapter, w.adapter.Targets, w.view.State, w.view.Reason, w.place.InFlight = "b", []string{"x"}, node.StateUnresponsive, "silent", 4
		}, want: "other_adapter not_offered unresponsive full", off: true},
	}
}

// Each way in which an adapter can be no candidate, alone, and what is said of it.
func TestWhyOfEachCandidate(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/ctl.md")
	if err != nil {
		t.Fatal(err)
	}
	docs := string(text)
	for _, c := range whyCases() {
		for _, code := range strings.Fields(c.want) {
			if !strings.Contains(docs, "`"+code+"`") {
				t.Errorf("docs/ctl.md lacks %s", code)
			}
		}
		view, place := ready("n", usable("a", "m")), placeOf("n", "a", 1, 4)
		w := world{record: config.NodeRecord{ID: "n", Enabled: true, Labels: map[string]string{"site": "here"}},
			adapter: config.Adapter{Name: "a", Kind: "openai"}, route: config.Route{Model: "m"}, view: &view, place: &place}
		if c.change != nil {
			c.change(&w)
		}
		g := newRig(t, here)
		w.record.Adapters = []config.Adapter{w.adapter}
		g.state = config.NewState(&config.Edge{Nodes: []config.NodeRecord{w.record}}, 1, nil)
		g.find = func(*config.Principal, string) (*config.Route, string, *execution.Failure) { return &w.route, "m", nil }
		if w.view != nil {
			g.nodes = []node.NodeView{*w.view}
		}
		if w.place != nil {
			g.queue.Places = []admission.PlaceSnapshot{*w.place}
		}
		v := g.why(t, "model=m"+c.query)
		if len(v.Candidates) != 1 || len(v.Problems) != 0 || v.Target != "m" || v.Route.Model != "m" {
			t.Fatalf("%s: %+v", c.name, v)
		}
		got := v.Candidates[0]
		if strings.Join(codes(got), " ") != c.want || got.TakesWork != (c.want == "") || got.OnRoute == c.off {
			t.Errorf("%s: %+v, want %q", c.name, got, c.want)
		}
		if text := fmt.Sprint(got.Reasons); !strings.Contains(text, c.says) {
			t.Errorf("%s: says %s, want %q in it", c.name, text, c.says)
		}
	}
}

// The candidates that take work come first, then those of the route that don't, then the others.
func TestWhyOrder(t *testing.T) {
	g := newRig(t, here)
	var records []config.NodeRecord
	for _, id := range []string{"off", "elsewhere", "on"} {
		records = append(records, config.NodeRecord{ID: id, Enabled: true, Adapters: []config.Adapter{{Name: "a", Kind: "openai"}}})
	}
	g.state = config.NewState(&config.Edge{Nodes: records}, 1, nil)
	route := &config.Route{Model: "*", Nodes: []string{"on", "off"}, Queue: config.Queue{Depth: 64, Wait: time.Minute}}
	g.find = func(*config.Principal, string) (*config.Route, string, *execution.Failure) { return route, "m", nil }
	g.nodes = []node.NodeView{ready("on", usable("a", "m")), ready("elsewhere", usable("a", "m"))}
	ago := time.Now().Add(-10 * time.Second)
	g.runs = []service.RunView{
		{Live: true, State: service.StateQueued, Route: "*", CreatedAt: time.Now()}, {Live: true, State: service.StateQueued, Route: "*", CreatedAt: ago},
		{Live: true, State: service.StateRunning, Route: "*"}, {State: service.StateQueued, Route: "*"}, {Live: true, State: service.StateQueued, Route: "x"},
	}
	v := g.why(t, "model=m")
	var order []string
	for _, c := range v.Candidates {
		order = append(order, fmt.Sprint(c.Node, " ", c.TakesWork, " ", c.Loaded))
	}
	if !slices.Equal(order, []string{"on true true", "off false false", "elsewhere false true"}) {
		t.Errorf("%v", order)
	}
	if v.Queue.Waiting != 2 || v.Queue.LongestMS < 10_000 || v.Route.Depth != 64 || v.Route.WaitMS != 60_000 {
		t.Errorf("%+v %+v", v.Queue, v.Route)
	}
}

// What keeps everybody out, or this principal.
func TestWhyNobodyIsLetIn(t *testing.T) {
	unknown := execution.Failf(execution.CodeUnknownModel, execution.OriginCaller, "no such model")
	route := &config.Route{Model: "big"}
	for _, c := range []struct {
		name, query string
		find        func(p *config.Principal) (*config.Route, *execution.Failure)
		draining    bool
		want        []reason
	}{
		{name: "no route", find: func(*config.Principal) (*config.Route, *execution.Failure) { return nil, unknown }, want: []reason{{"unknown_model", "no such model"}}},
		{name: "not this principal's", query: "&principal=bob", find: func(p *config.Principal) (*config.Route, *execution.Failure) {
			if p != nil && p.ID == "bob" {
				return route, unknown
			}
			return route, nil
		}, want: []reason{{"unknown_model", `bob may not use the route "big"; its routes are small, tiny`}}},
		{name: "nobody's", query: "&principal=bob", find: func(*config.Principal) (*config.Route, *execution.Failure) { return route, unknown }, want: []reason{{"unknown_model", "no such model"}}},
		{name: "no such principal", query: "&principal=carol", find: func(*config.Principal) (*config.Route, *execution.Failure) { return route, nil },
			want: []reason{{"unauthorized", "no principal of that id is configured"}}},
		{name: "draining", draining: true, find: func(*config.Principal) (*config.Route, *execution.Failure) { return route, nil }, want: []reason{{"edge_draining", "draining"}}},
	} {
		g := newRig(t, here)
		if c.draining {
			g.notReady = []string{"draining"}
		}
		g.state = config.NewState(&config.Edge{Principals: []config.Principal{{ID: "bob", Routes: []string{"small", "tiny"}}}}, 1, nil)
		g.find = func(p *config.Principal, _ string) (*config.Route, string, *execution.Failure) {
			r, f := c.find(p)
			return r, "m", f
		}
		if v := g.why(t, "model=m"+c.query); !slices.Equal(v.Problems, c.want) {
			t.Errorf("%s: %+v", c.name, v.Problems)
		}
	}
}

func TestWhyRefusesWhatItDoesntKnow(t *testing.T) {
	g := newRig(t, here)
	for query, says := range map[string]string{"": "model is missing", "model=": "model is missing", "model=a&model=b": "each once", "mode=a": "each once",
		"model=%zz": "well-formed"} {
		if resp, body := g.ask("GET", "/admin/v1/why?"+query, here); resp.StatusCode != 400 || !strings.Contains(body, says) {
			t.Errorf("%q: %s %s", query, resp.Status, body)
		}
	}
}
