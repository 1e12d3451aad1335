package service

import (
	"strings"
	"sync"
	"testing"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// either is a request for the rig's route that may go as a run, too.
func (r *rig) either(runID, body string) (*Tunnel, *listener) {
	t, l := r.tunnel(runID, body), &listener{}
	t.Run = &Alternative{Events: l, Input: &execution.Request{
		Messages: []execution.Message{{Role: execution.RoleUser, Parts: []execution.Part{{Text: "hello"}}}}}}
	return t, l
}

// speaks answers whatever it was sent.
func speaks(w *work) {
	if w.isRun {
		talks(w)
		return
	}
	w.answer("from " + w.node.id)
}

// An adapter that carries the path gets the request as it is, any other the run; the outcome says which, and the limits
// of the route hold for both.
func TestTheGrantDecidesTheWay(t *testing.T) {
	r := newRig(t, setup{nodes: []string{"a", "b"}, kinds: []string{"openai", "anthropic"}, capacity: 1,
		route: ", first_byte: 3s, idle: 2s, deadline: 1m", manual: true})
	for _, c := range []struct {
		node string
		kind execution.Kind
	}{{"a", execution.KindTunnel}, {"b", execution.KindRun}} {
		n := r.join(c.node, 1, 1, speaks)
		tunnel, events := r.either("run-"+c.node, "the body")
		tunnel.SessionID = "s-1"
		o, got := r.run(tunnel)
		if !o.OK() || o.Kind != c.kind || o.NodeID != c.node || !o.HeadSent {
			t.Fatalf("%+v %v", o, o.Failure)
		}
		n.mu.Lock()
		open := n.opens[0]
		n.mu.Unlock()
		asTunnel, asRun := open.GetTunnel(), open.GetRun()
		if c.kind == execution.KindTunnel {
			if asTunnel.GetContentLength() != 8 || asTunnel.GetFirstByteMs() != 3000 || o.BytesIn != 8 {
				t.Errorf("open %v", open)
			}
			if got.text() != "from a" || len(events.events) != 0 || events.node != "" {
				t.Errorf("%q, %v", got.text(), events.events)
			}
		} else {
			if asRun.GetRunId() != "run-b" || asRun.GetTarget() != "p" || asRun.GetRoute() != "m" || asRun.GetSessionId() != "s-1" ||
				asRun.GetFirstByteMs() != 3000 || asRun.GetIdleMs() != 2000 || asRun.GetDeadlineMs() <= 0 || asRun.GetDeadlineMs() > 60_000 || asRun.GetPrincipalRef() != "anonymous" {
				t.Errorf("open %v", open)
			}
			if events.text() != "onetwo" || events.gap || events.node != "b" || got.status != 0 || got.node != "" || o.FinishReason != "stop" {
				t.Errorf("%v, %d", events.events, got.status)
			}
			if v, _ := r.svc.Run("run-b"); v.Kind != "run" || v.State != StateComplete {
				t.Errorf("shown as %+v", v)
			}
		}
		n.leave()
	}
}

// What never started goes on the other way: as a run after a tunnel, and the other way round, each with its whole
// content.
func TestAnAttemptMayChangeTheWay(t *testing.T) {
	for first, second := range map[string]string{"a": "b", "b": "a"} {
		t.Run("first "+first, func(t *testing.T) {
			onFakeTime(t, func(t *testing.T) {
				rejected := make(chan struct{})
				r := newRig(t, setup{nodes: []string{"a", "b"}, kinds: []string{"openai", "anthropic"}, manual: true})
				r.join(first, 1, 4, func(w *work) {
					w.reject(execution.CodeAdapterBusy, true)
					close(rejected)
				})
				tunnel, events := r.either("run-1", "the body")
				p := r.submit(tunnel, &recorder{})
				<-rejected
				var text string
				r.join(second, 1, 4, func(w *work) {
					w.accept()
					if w.isRun {
						text = w.content().GetMessages()[0].GetParts()[0].GetText()
						w.delta("x")
						w.complete("stop")
						return
					}
					text = string(w.input())
					w.head(200)
					w.body("x")
					w.end(1)
				})
				o := r.outcome(p)
				if !o.OK() || o.Attempts != 2 || len(o.Tried) != 1 || o.Tried[0].NodeID != first || o.NodeID != second {
					t.Fatalf("%+v %v", o, o.Failure)
				}
				wantKind, wantText := execution.KindTunnel, "the body"
				if second == "b" {
					wantKind, wantText = execution.KindRun, "hello"
				}
				if o.Kind != wantKind || text != wantText || events.text()+p.text() != "x" {
					t.Errorf("%v with %q, answer %q and %q", o.Kind, text, events.text(), p.text())
				}
				r.idle()
			})
		})
	}
}

// Without a run only adapters that carry the path are asked, whoever else is idle.
func TestATunnelStaysATunnel(t *testing.T) {
	r := newRig(t, setup{nodes: []string{"a", "b"}, kinds: []string{"openai", "anthropic"}, work: speaks})
	for _, id := range []string{"run-1", "run-2", "run-3"} {
		if o, got := r.run(r.tunnel(id, "")); !o.OK() || o.NodeID != "a" || got.text() != "from a" {
			t.Errorf("%+v", o)
		}
	}
	// Those that may go either way don't wait behind those that can't.
	held := make(chan struct{})
	proceed := sync.OnceFunc(func() { close(held) })
	t.Cleanup(proceed) // before the rig's, which waits for the node
	r.node("a", 1).script = func(w *work) { <-held; speaks(w) }
	r.node("a", 1).publish(1)
	first, second := r.submit(r.tunnel("first", ""), &recorder{}), r.submit(r.tunnel("second", ""), &recorder{})
	untilQueued(r, 1)
	tunnel, _ := r.either("third", "")
	if o, _ := r.run(tunnel); !o.OK() || o.NodeID != "b" {
		t.Errorf("%+v", o)
	}
	proceed()
	for _, p := range []*pending{first, second} {
		if o := r.outcome(p); !o.OK() || o.NodeID != "a" {
			t.Errorf("%+v", o)
		}
	}
}

// What no adapter of the route could ever take is refused at once and not waited for.
func TestNoAdapterCarriesIt(t *testing.T) {
	r := newRig(t, setup{kinds: []string{"anthropic"}, work: speaks})
	o, _ := r.run(r.tunnel("run-1", ""))
	if code(o) != execution.CodeBadRequest || !o.Failure.NothingSent || o.Attempts != 0 ||
		!strings.Contains(o.Failure.Text, `no adapter of the route "m" carries /v1/chat/completions`) {
		t.Errorf("%+v %v", o, o.Failure)
	}
}

// A run that no provider could be told is refused before anything is sent, and so is one that is too large.
func TestAlternativeIsChecked(t *testing.T) {
	r := newRig(t, setup{kinds: []string{"anthropic"}, work: speaks, service: Config{MaxInput: 64}})
	for want, change := range map[execution.Code]func(*execution.Request){
		execution.CodeBadRequest:   func(in *execution.Request) { in.Messages[0].Failed = true },
		execution.CodeBodyTooLarge: func(in *execution.Request) { in.Messages[0].Parts[0].Text = strings.Repeat("x", 65) },
	} {
		tunnel, _ := r.either("run-"+want.String(), "body")
		change(tunnel.Run.Input)
		if o, _ := r.run(tunnel); code(o) != want || o.Attempts != 0 || o.BytesIn != 4 {
			t.Errorf("%+v %v", o, o.Failure)
		}
	}
}

// While it runs, whoever looks sees which way it went.
func TestTheWayIsShown(t *testing.T) {
	r := newRig(t, setup{kinds: []string{"anthropic"}, work: func(w *work) {
		w.accept()
		w.delta("x")
		w.awaitEOF()
	}})
	tunnel, events := r.either("run-1", "")
	p := r.submit(tunnel, &recorder{})
	r.poll("an event", func() bool { return events.text() != "" })
	if v, _ := r.svc.Run("run-1"); v.Kind != "run" || v.State != StateRunning || v.Model != "m" {
		t.Errorf("%+v", v)
	}
	p.leave()
	if o := r.outcome(p); code(o) != execution.CodeClientGone || o.Kind != execution.KindRun || !o.HeadSent {
		t.Errorf("%+v", o)
	}
	if cause := r.node("a", 1).awaitCancel("run-1"); cause == 0 {
		t.Error("the node wasn't told why")
	}
	r.idle()
}

// The deadline of the request ends it whichever way it went.
func TestAlternativeDeadline(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		r := newRig(t, setup{kinds: []string{"anthropic"}, work: func(w *work) { w.accept(); w.awaitEOF() }})
		tunnel, _ := r.either("run-1", "")
		tunnel.Deadline = 4 * short
		started := time.Now()
		if o, _ := r.run(tunnel); code(o) != execution.CodeDeadline || o.HeadSent || time.Since(started) != 4*short {
			t.Errorf("%+v", o)
		}
		r.idle()
	})
}

func TestPossible(t *testing.T) {
	adapter := func(name, kind string) config.Adapter { return config.Adapter{Name: name, Kind: kind} }
	state := config.NewState(&config.Edge{Nodes: []config.NodeRecord{
		{ID: "a", Enabled: true, Labels: map[string]string{"site": "x"}, Adapters: []config.Adapter{adapter("o", "openai"), adapter("n", "anthropic")}},
		{ID: "b", Enabled: true, Adapters: []config.Adapter{{Name: "l", Kind: "openai", AllowPaths: []string{"/v1/messages"}, Targets: []string{"m"}}}},
		{ID: "c", Adapters: []config.Adapter{adapter("off", "ollama")}},
	}}, 1, nil)
	for _, c := range []struct {
		route        config.Route
		target, path string
		possible     bool
	}{
		{config.Route{}, "m", "/v1/chat/completions", true},
		{config.Route{Adapter: "n"}, "m", "/v1/chat/completions", false},
		{config.Route{Adapter: "n"}, "m", "/v1/messages/count_tokens", true},
		{config.Route{Labels: map[string]string{"site": "x"}}, "m", "/v1/embeddings", true},
		{config.Route{Nodes: []string{"b"}}, "m", "/v1/messages", true}, // by allow_paths
		{config.Route{Nodes: []string{"b"}}, "m", "/v1/messages/count_tokens", false},
		{config.Route{Nodes: []string{"b"}}, "other", "/v1/messages", true}, // not among its targets: no adapter at all, which may come
		{config.Route{Adapter: "off"}, "m", "/api/chat", true},              // not enabled, the same
		{config.Route{}, "m", "/api/chat", false},
	} {
		j := &tunnelJob{Tunnel: &Tunnel{Path: c.path, Target: c.target}, route: &c.route}
		if f := j.possible(state); (f == nil) != c.possible {
			t.Errorf("%+v, %s, %s: %v", c.route, c.target, c.path, f)
		}
		if j.run = (&asRun{}); j.possible(state) != nil {
			t.Errorf("%+v, %s, %s: not even as a run", c.route, c.target, c.path)
		}
	}
}
