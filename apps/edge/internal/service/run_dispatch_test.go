package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// The node gets the whole spec, and gets the content as it was given.
func TestRunOpenSaysEverything(t *testing.T) {
	var open *pb.WorkOpen
	var content *pb.RunInput
	r := newRig(t, setup{work: func(w *work) {
		w.accept()
		open, content = w.open, w.content()
		w.complete("stop")
	}})
	temperature := 0.5
	spec := &RunSpec{RunID: "run-1", Principal: "alice", SessionID: "s-1", Adapter: "p", Target: "m", Node: "a", Background: true,
		Deadline: time.Minute, Metadata: map[string]string{"b": "2", "a": "1"}, Input: &execution.Request{
			Messages: []execution.Message{
				{Role: execution.RoleUser, Name: "bob", Parts: []execution.Part{{Text: "Grüße"}, {Image: &execution.Image{MediaType: "image/png", Data: []byte{1, 2}}}}},
				{Role: execution.RoleAssistant, ToolCalls: []execution.ToolCall{{ID: "c0", Name: "look", Arguments: `{}`}}},
				{Role: execution.RoleTool, ToolCallID: "c0", Parts: []execution.Part{{Text: "seen"}}},
			},
			Tools:      []execution.Tool{{Name: "look", Description: "looks", Parameters: []byte(`{"type":"object"}`)}},
			ToolChoice: execution.ToolChoice{Mode: execution.ToolNamed, Name: "look"},
			Options:    execution.Options{Temperature: &temperature},
		}}
	if o, _ := r.ask(spec); !o.OK() || o.BytesIn == 0 {
		t.Fatalf("%+v", o)
	}
	req := open.GetRun()
	if open.GetConnectionGeneration() != 1 || open.GetAttempt() != 1 || req.GetRunId() != "run-1" || req.GetAdapter() != "p" ||
		req.GetTarget() != "m" || req.GetSessionId() != "s-1" || !req.GetBackground() || req.GetAdapterRevision() == 0 ||
		req.GetDeadlineMs() <= 0 || req.GetDeadlineMs() > 60_000 || req.GetPrincipalRef() != "alice" ||
		fmt.Sprint(req.GetMetadata()) != fmt.Sprint([]*pb.KeyValue{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}}) {
		t.Errorf("open %v", open)
	}
	choice, err := execution.ParseToolChoice([]byte(content.GetToolChoiceJson()))
	options, err2 := execution.ParseOptions([]byte(content.GetOptionsJson()))
	if err != nil || err2 != nil || choice != spec.Input.ToolChoice || *options.Temperature != temperature {
		t.Errorf("tool choice %q, options %q", content.GetToolChoiceJson(), content.GetOptionsJson())
	}
	content.ToolChoiceJson, content.OptionsJson = "", ""
	want := `{"messages":[{"role":"user","parts":[{"text":"Grüße"},{"image":{"mediaType":"image/png","data":"AQI="}}],"name":"bob"},` +
		`{"role":"assistant","toolCalls":[{"id":"c0","name":"look","argumentsFragment":"{}"}]},` +
		`{"role":"tool","parts":[{"text":"seen"}],"toolCallId":"c0"}],` +
		`"tools":[{"name":"look","description":"looks","parametersJson":"{\"type\":\"object\"}"}]}`
	got, _ := protojson.Marshal(content)
	if g := strings.ReplaceAll(string(got), " ", ""); g != want {
		t.Errorf("content\n%s, want\n%s", g, want)
	}
}

// Inputs of all sizes arrive, whoever writes them, and once more where the first node refused.
func TestRunInputs(t *testing.T) {
	for _, size := range []int{1, 4 << 10, oneFlush, 100 << 10, inlineBody + 1, 3 << 20} {
		r := newRig(t, setup{nodes: []string{"a", "b"}, work: func(w *work) {
			if w.attempt == 1 {
				w.reject(execution.CodeNodeDraining, true)
				return
			}
			w.accept()
			w.delta(fmt.Sprint(len(w.content().GetMessages()[0].GetParts()[0].GetText())))
			w.complete("stop")
		}})
		spec := r.spec("run-1")
		spec.Input.Messages[0].Parts[0].Text = strings.Repeat("x", size)
		if o, l := r.ask(spec); !o.OK() || l.text() != fmt.Sprint(size) || o.Attempts != 2 {
			t.Errorf("%d bytes: %+v, answer %q", size, o, l.text())
		}
	}
}

// CP-02: what is wrong with a spec is said at the door: no place is taken, and nothing is remembered.
func TestRunRefusedAtTheDoor(t *testing.T) {
	r := newRig(t, setup{work: talks, service: Config{MaxInput: 1000}})
	for name, c := range map[string]struct {
		change func(*RunSpec)
		code   execution.Code
	}{
		"run id":          {func(s *RunSpec) { s.RunID = "no good\n" }, execution.CodeBadRequest},
		"long run id":     {func(s *RunSpec) { s.RunID = strings.Repeat("x", 65) }, execution.CodeBadRequest},
		"session":         {func(s *RunSpec) { s.SessionID = "é" }, execution.CodeBadRequest},
		"no adapter":      {func(s *RunSpec) { s.Adapter = "" }, execution.CodeBadRequest},
		"no target":       {func(s *RunSpec) { s.Target = "" }, execution.CodeBadRequest},
		"no input":        {func(s *RunSpec) { s.Input = nil }, execution.CodeBadRequest},
		"no messages":     {func(s *RunSpec) { s.Input.Messages = nil }, execution.CodeBadRequest},
		"metadata":        {func(s *RunSpec) { s.Metadata = map[string]string{"k": "\xff"} }, execution.CodeBadRequest},
		"too large":       {func(s *RunSpec) { s.Input.Messages[0].Parts[0].Text = strings.Repeat("x", 1000) }, execution.CodeBodyTooLarge},
		"unknown adapter": {func(s *RunSpec) { s.Adapter = "q" }, execution.CodeUnknownAdapter},
		"unknown node":    {func(s *RunSpec) { s.Node = "z" }, execution.CodeNoNode},
	} {
		for _, background := range []bool{false, true} {
			spec := r.spec("run-1")
			spec.Background = background
			c.change(spec)
			if o, _ := r.ask(spec); o == nil || code(o) != c.code || o.Attempts != 0 || o.Failure.Text == "" {
				t.Errorf("%s: %+v", name, o)
			}
		}
	}
	if len(r.svc.Runs()) != 0 || r.node("a", 1).openCount() != 0 {
		t.Errorf("runs %+v", r.svc.Runs())
	}
	if o, _ := r.ask(r.spec("run-1")); !o.OK() {
		t.Errorf("the id was used up: %v", o.Failure)
	}
	if o, _ := r.ask(r.inBackground("run-1")); code(o) != execution.CodeDuplicateRun {
		t.Errorf("%v", o.Failure)
	}
	r.svc.Drain()
	if o, _ := r.ask(r.inBackground("run-2")); code(o) != execution.CodeEdgeDraining {
		t.Errorf("%v", o.Failure)
	}
}

// A head that doesn't fit a message to the node is refused by its name.
func TestRunHeadTooLarge(t *testing.T) {
	r := newRig(t, setup{work: talks})
	spec := r.spec("run-1")
	spec.Metadata = map[string]string{"k": strings.Repeat("x", 64<<10)}
	if o, _ := r.ask(spec); code(o) != execution.CodeBadRequest {
		t.Errorf("%+v", o)
	}
	r.idle()
}

// An explicit node is the only candidate; without one, any that has the adapter and offers the target.
func TestRunSelection(t *testing.T) {
	r := newRig(t, setup{nodes: []string{"a", "b"}, work: talks})
	for _, node := range []string{"a", "b"} {
		for i := range 4 {
			spec := r.spec(fmt.Sprintf("%s-%d", node, i))
			spec.Node = node
			if o, l := r.ask(spec); !o.OK() || o.NodeID != node || l.node != node {
				t.Errorf("%+v", o)
			}
		}
	}
	r.offer("a", execution.Model{Name: "other"})
	r.offer("b", execution.Model{Name: "m"})
	for i := range 4 {
		if o, _ := r.ask(r.spec(fmt.Sprintf("any-%d", i))); !o.OK() || o.NodeID != "b" {
			t.Errorf("%+v", o)
		}
	}
}

// offer publishes a node whose provider names these models.
func (r *rig) offer(id string, models ...execution.Model) {
	r.sched.Publish(admission.Node{ID: id, Generation: 1, Dispatchable: true, Adapters: []admission.Adapter{{
		Name: "p", Kind: "loopback", Revision: revision(r.state.Load(), admission.Place{Node: id, Adapter: "p"}),
		Capacity: 4, Available: true, Models: models}}})
}

// The single node is asked for what its provider doesn't name, so that its own answer is seen; with a second one
// connected nobody is.
func TestSingleNodeFallback(t *testing.T) {
	r := newRig(t, setup{nodes: []string{"a", "b"}, manual: true})
	r.join("a", 1, 4, func(w *work) { w.reject(execution.CodeBadRequest, true) })
	r.offer("a", execution.Model{Name: "other"})
	if o, _ := r.ask(r.spec("alone")); code(o) != execution.CodeBadRequest || o.NodeID != "a" || o.Failure.Origin != execution.OriginNode {
		t.Errorf("%+v", o)
	}
	r.join("b", 1, 4, talks)
	r.offer("b", execution.Model{Name: "another"})
	h := r.start(r.spec("two"), &listener{})
	untilQueued(r, 1)
	r.svc.Cancel("two", execution.CauseAPI)
	if o := r.result(h); o.Attempts != 0 {
		t.Errorf("%+v", o)
	}
}

// A configured list of targets is no fallback's to pass.
func TestFallbackStopsAtAllowList(t *testing.T) {
	j := &runJob{runWay: runWay{spec: RunSpec{Adapter: "p", Target: "m"}}, only: "a"}
	_, match := j.candidates(nil, nil)
	n := &admission.Node{ID: "a"}
	if match(n, &admission.Adapter{Name: "p", Targets: []string{"other"}}) || !match(n, &admission.Adapter{Name: "p", Models: []execution.Model{{Name: "other"}}}) ||
		match(n, &admission.Adapter{Name: "q"}) || match(&admission.Node{ID: "b"}, &admission.Adapter{Name: "p", Models: []execution.Model{{Name: "other"}}}) {
		t.Error("the fallback is too narrow or too wide")
	}
}

// A principal with a list of routes runs only where one of them leads.
func TestRunPermissions(t *testing.T) {
	state := config.NewState(&config.Edge{
		Nodes: []config.NodeRecord{{ID: "a", Enabled: true, Adapters: []config.Adapter{{Name: "p", Kind: "loopback"}, {Name: "q", Kind: "loopback"}}}},
		Principals: []config.Principal{{ID: "all"}, {ID: "some", Routes: []string{"small", "named", "open"}},
			{ID: "star", Routes: []string{"*"}}},
		Routes: []config.Route{{Model: "small", Adapter: "p", Target: "m", Nodes: []string{"a"}}, {Model: "named", Adapter: "q"},
			{Model: "open", Adapter: "q", Labels: map[string]string{"zone": "x"}, Target: "z"}, {Model: "*", Adapter: "p"}},
	}, 1, nil)
	for _, c := range []struct {
		principal, adapter, target string
		want                       bool
	}{
		{"all", "p", "m", true}, {"all", "q", "x", true}, {"nobody", "p", "m", false},
		{"some", "p", "m", true}, {"some", "p", "x", false}, {"some", "q", "m", false}, {"some", "q", "named", true},
		{"some", "q", "z", true}, {"star", "p", "whatever", true}, {"star", "q", "whatever", false},
	} {
		j := &runJob{runWay: runWay{spec: RunSpec{Principal: c.principal, Adapter: c.adapter, Target: c.target}}, only: "b"}
		routes, f := j.admissible(state)
		if (f == nil) != c.want || f != nil && f.Code != execution.CodeUnknownAdapter {
			t.Errorf("%+v: %v", c, f)
		}
		if c.principal != "some" || f != nil {
			continue
		}
		set, match := j.candidates(state, routes)
		if open, _ := j.candidates(state, nil); open == set {
			t.Errorf("%+v shares its candidates with those who may go anywhere", c)
		}
		at := func(node, zone string) bool {
			return match(&admission.Node{ID: node, Labels: map[string]string{"zone": zone}}, &admission.Adapter{Name: c.adapter})
		}
		if c.target == "m" && (!at("a", "") || at("b", "")) || c.target == "z" && (!at("b", "x") || at("b", "")) {
			t.Errorf("%+v goes past its route", c)
		}
	}
}

// The principal's permission is looked up once more before anything is sent.
func TestRunPermissionRevoked(t *testing.T) {
	r, free := full(t, "")
	h := r.start(r.spec("run-1"), &listener{})
	untilQueued(r, 1)
	e := *r.state.Load().Edge
	e.Principals = []config.Principal{{ID: "somebody-else"}}
	r.state.Store(config.NewState(&e, 2, r.state.Load()))
	free()
	if o := r.result(h); code(o) != execution.CodeUnknownAdapter || !o.Failure.NothingSent || r.node("a", 1).openCount() != 1 {
		t.Errorf("%+v", o)
	}
	r.idle()
}

// A node that doesn't know background runs isn't sent one; another is, and without another the reason is said.
func TestBackgroundIsNegotiated(t *testing.T) {
	r := newRig(t, setup{nodes: []string{"a", "b"}, manual: true, work: talks})
	a := r.join("a", 1, 4, talks)
	a.foreground = true
	o, _ := r.ask(r.inBackground("alone"))
	if code(o) != execution.CodeBadRequest || !strings.Contains(o.Failure.Text, "node a ") {
		t.Errorf("%+v", o)
	}
	if o, _ := r.ask(r.spec("fore")); !o.OK() {
		t.Errorf("foreground: %+v", o)
	}
	r.join("b", 1, 4, talks)
	for i := range 4 {
		if o, _ := r.ask(r.inBackground(fmt.Sprintf("run-%d", i))); !o.OK() || o.NodeID != "b" {
			t.Errorf("%+v", o)
		}
	}
	if a.openCount() != 1 {
		t.Errorf("%d opens at a", a.openCount())
	}
	r.idle()
}

// Retries are those of tunnels: what never started goes elsewhere, an unreachable provider is asked once.
func TestRunRetries(t *testing.T) {
	both(t, func(t *testing.T, background bool) {
		r := newRig(t, setup{nodes: []string{"a", "b"}, work: func(w *work) {
			switch {
			case w.attempt > 1:
				talks(w)
			case strings.HasPrefix(w.runID, "busy"):
				w.reject(execution.CodeAdapterBusy, true)
			default:
				w.accept()
				w.fail(execution.CodeUpstreamConnect, true)
			}
		}})
		for _, id := range []string{"busy", "unreachable"} {
			spec := r.spec(id)
			spec.Background = background
			if o, l := r.ask(spec); !o.OK() || o.Attempts != 2 || len(o.Tried) != 1 || l.text() != "onetwo" || l.gap {
				t.Errorf("%s: %+v", id, o)
			}
		}
		r.idle()
	})
}

// The table shows what is live and what has ended, runs and tunnels, the newest first.
func TestRunTable(t *testing.T) {
	proceed := make(chan struct{})
	r := newRig(t, setup{capacity: 2, service: Config{Recent: 3}, work: func(w *work) {
		w.accept()
		if w.isRun {
			<-proceed
			w.complete("stop")
			return
		}
		w.head(200)
		w.end(0)
	}})
	r.run(r.tunnel("tunnel", ""))
	r.idle()
	first, second := r.start(r.spec("first"), &listener{}), r.start(r.spec("second"), &listener{})
	r.poll("both are sent", func() bool { return r.node("a", 1).openCount() == 3 })
	queued := r.start(r.spec("queued"), &listener{})
	untilQueued(r, 1)
	ids := func() (ids []string) {
		for _, v := range r.svc.Runs() {
			ids = append(ids, v.RunID+" "+string(v.State))
		}
		slices.Sort(ids[:min(len(ids), 2)]) // began at about the same time
		return ids
	}
	if v := r.svc.Runs(); len(v) != 4 || v[0].RunID != "queued" || v[0].State != StateQueued || v[0].Node != "" || v[0].PlacedAt != nil ||
		v[0].Adapter != "p" || v[3].Kind != "tunnel" || v[3].State != StateComplete || v[3].Model != "m" {
		t.Errorf("%+v", v)
	}
	close(proceed)
	for _, h := range []*hearing{first, second, queued} {
		if o := r.result(h); !o.OK() {
			t.Error(o.Failure)
		}
	}
	if got := ids(); len(got) != 3 || slices.Contains(got, "tunnel complete") {
		t.Errorf("%v: not the last three", got)
	}
	if _, ok := r.svc.Run("tunnel"); ok {
		t.Error("the fourth last is remembered")
	}
}
