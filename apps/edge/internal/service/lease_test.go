package service

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

const secret = "sk-the-providers-key-0123456789"

// ledger lends out, and writes down what becomes of each lease.
type ledger struct {
	mu      sync.Mutex
	orders  []LeaseOrder
	told    []string
	refuse  bool
	current func(n int) bool // of the nth lease; nil = always
}

func (l *ledger) Issue(o LeaseOrder) (Lease, *execution.Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders = append(l.orders, o)
	if l.refuse {
		return nil, &execution.Failure{Code: execution.CodeCredentialUnavailable, Origin: execution.OriginEdge, NothingSent: true, Text: "not now"}
	}
	return &noted{ledger: l, n: len(l.orders)}, nil
}

func (l *ledger) note(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, what)
}

// all is what was told, one word for each.
func (l *ledger) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.told, " ")
}

func (l *ledger) issued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.orders)
}

// noted is a lease of the ledger.
type noted struct {
	ledger *ledger
	n      int
	kept   []byte // by Pass
}

func (x *noted) say(what string) { x.ledger.note(fmt.Sprintf("%d:%s", x.n, what)) }
func (x *noted) Wire() []byte    { return []byte(fmt.Sprintf("lease %d", x.n)) }
func (x *noted) Profile() string { return "profile" }
func (x *noted) Current() bool   { return x.ledger.current == nil || x.ledger.current(x.n) }
func (x *noted) Used()           { x.say("used") }
func (x *noted) Void()           { x.say("void") }
func (x *noted) Refused(why execution.LeaseRefusal) {
	x.say(fmt.Sprintf("refused(%d,%d)", why.Reason, why.Field))
}
func (x *noted) Lost()                   { x.say("lost") }
func (x *noted) Close()                  { x.say("closed") }
func (x *noted) Scanner() Scanner        { return x }
func (x *noted) Head(h http.Header) bool { return strings.Contains(fmt.Sprint(h), secret) }
func (x *noted) Text(s string) bool      { return strings.Contains(s, secret) }
func (x *noted) Rest() []byte            { return x.kept }
func (x *noted) Pass(p []byte) (out []byte, is bool) { // keeps back all of a piece that ends in the key's beginning
	p = append(x.kept, p...)
	if x.kept = nil; bytes.Contains(p, []byte(secret)) {
		return nil, true
	}
	if i := bytes.LastIndex(p, []byte(secret[:3])); i >= 0 && strings.HasPrefix(secret, string(p[i:])) {
		p, x.kept = p[:i], bytes.Clone(p[i:])
	}
	return p, false
}

// refuses is a node that answers with a lease's refusal, as a rejection or as a terminal.
func (w *work) refuses(reason credentiallease.Reason, rejected bool) {
	f := &pb.Failure{Code: pb.FailureCode_FAILURE_CODE_CREDENTIAL_REFUSED, Origin: pb.Origin_ORIGIN_NODE, Text: "lease refused: " + reason.String(),
		LeaseReason: pb.LeaseReason(reason), LeaseField: 23, NothingSent: true}
	if rejected {
		w.ended = true
		w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: &pb.Rejected{Failure: f, NeverStarted: true}}})
		return
	}
	w.accept()
	w.finish(pb.RunStatus_RUN_STATUS_ERROR)
	w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Error{Error: f}})
}

// keyed is a rig whose route needs a key, which the nodes a and b may be given, and c not.
func keyed(t *testing.T, s setup, l *ledger) *rig {
	t.Helper()
	s.service.Leases = l
	if s.nodes == nil {
		s.nodes = []string{"a", "b", "c"}
	}
	s.manual = true
	r := newRig(t, s)
	route := &r.state.Load().Edge.Routes[0]
	route.Slot, route.SlotNodes = "slot", []string{"a", "b"}
	for _, id := range s.nodes {
		r.join(id, 1, 4, s.work)
	}
	return r
}

// Protocol §2.E, E18: each attempt has a lease of its own, which is asked for after the place and names all that it is for; only a
// node that may be given the key is a candidate; its end is the end of the lease.
func TestEachAttemptBorrows(t *testing.T) {
	l := &ledger{}
	r := keyed(t, setup{work: func(w *work) { w.input(); w.answer("paid") }}, l)
	o, c := r.run(r.tunnel("run-1", "{}"))
	if !o.OK() || c.text() != "paid" || o.NodeID == "c" {
		t.Fatalf("%+v %q", o, c.text())
	}
	open := r.node(o.NodeID, 1).opens[0].GetTunnel()
	if string(open.GetLease()) != "lease 1" || open.GetSlot() != "slot" || open.GetProfile() != "profile" || open.GetRoute() != "m" || open.GetPrincipalRef() != "anonymous" {
		t.Errorf("%v", open)
	}
	if got := l.orders[0]; got.RunID != "run-1" || got.Attempt != 1 || got.NodeID != o.NodeID || got.Generation != 1 || got.Projection != 1 || !got.Proven ||
		got.Principal != "anonymous" || got.Target != "p" || got.Method != "POST" || got.Path != "/v1/chat/completions" || got.Adapter.Name != "p" || got.Route.Slot != "slot" {
		t.Errorf("%+v", got)
	}
	if l.all() != "1:used 1:closed" {
		t.Errorf("%s", l.all())
	}
}

// A run that names adapter and target needs the key of the route that leads there, whoever sends it.
func TestARunBorrows(t *testing.T) {
	l := &ledger{}
	r := keyed(t, setup{nodes: []string{"a"}, work: func(w *work) {
		w.input()
		w.accept()
		w.event(&pb.RunEvent{Event: &pb.RunEvent_Complete{Complete: &pb.RunComplete{FinishReason: "stop"}}})
	}}, l)
	spec := &RunSpec{RunID: "run-1", Principal: "anonymous", Adapter: "p", Target: "p",
		Input: &execution.Request{Messages: []execution.Message{{Role: execution.RoleUser, Parts: []execution.Part{{Text: "hi"}}}}}}
	if o := r.svc.SubmitRun(context.Background(), spec, nil); !o.OK() {
		t.Fatalf("%+v", o)
	}
	open := r.node("a", 1).opens[0].GetRun()
	if string(open.GetLease()) != "lease 1" || open.GetRoute() != "m" || open.GetSlot() != "slot" || l.orders[0].Path != "" || l.orders[0].Method != "POST" {
		t.Errorf("%v, %+v", open, l.orders[0])
	}
}

// E19, protocol §2.C "lease refused at the edge": without a lease nothing is opened, nowhere.
func TestNothingIsSentWithoutALease(t *testing.T) {
	l := &ledger{refuse: true}
	r := keyed(t, setup{work: func(w *work) { w.answer("free") }}, l)
	o, _ := r.run(r.tunnel("run-1", "{}"))
	if code(o) != execution.CodeCredentialUnavailable || !o.Failure.NothingSent || l.issued() != 1 {
		t.Errorf("%+v after %d orders", o.Failure, l.issued())
	}
	for _, id := range []string{"a", "b", "c"} {
		if n := r.node(id, 1).openCount(); n != 0 {
			t.Errorf("node %s got %d opens", id, n)
		}
	}
	r.idle()
	without := &setup{work: func(w *work) { w.answer("free") }, nodes: []string{"a"}}
	bare := keyed(t, *without, l)
	bare.svc.cfg.Leases = nil
	if o, _ := bare.run(bare.tunnel("run-1", "{}")); code(o) != execution.CodeCredentialUnavailable || bare.node("a", 1).openCount() != 0 {
		t.Errorf("an edge without keys: %+v", o.Failure)
	}
}

// E19, protocol §2.C, §2.E: a refused lease ends the run, with the reason for the operator and not for the caller; only what a fresh
// lease cures is tried once more. No other node is tried, and nothing goes without.
func TestRefusedLeases(t *testing.T) {
	stale := func(n int) bool { return n != 1 } // the key was changed while the first lease was on its way
	for _, c := range []struct {
		name     string
		reason   credentiallease.Reason
		rejected bool
		times    int // that the node refuses
		current  func(int) bool
		code     execution.Code
		told     string
	}{
		{"altered", credentiallease.BadSignature, true, 1, nil, execution.CodeCredentialRefused, "1:refused(4,23) 1:void 1:closed"},
		{"for something else", credentiallease.BindingMismatch, true, 1, nil, execution.CodeCredentialRefused, "1:refused(13,23) 1:void 1:closed"},
		{"expired", credentiallease.Expired, true, 1, nil, execution.CodeOK, "1:refused(11,23) 1:void 1:closed 2:used 2:closed"},
		{"expired again", credentiallease.Expired, true, 2, nil, execution.CodeCredentialRefused, "1:refused(11,23) 1:void 1:closed 2:refused(11,23) 2:void 2:closed"},
		{"eight reloads behind", credentiallease.StaleRevision, true, maxRevision, nil, execution.CodeOK, ""},
		{"nine reloads behind", credentiallease.StaleRevision, true, maxRevision + 1, nil, execution.CodeCredentialRefused, ""},
		{"stale when it was to be used", credentiallease.StaleGeneration, false, 1, nil, execution.CodeOK, "1:closed 2:used 2:closed"},
		{"replayed when it was to be used", credentiallease.Replayed, false, 1, nil, execution.CodeCredentialRefused, "1:closed"},
		{"rotated meanwhile", credentiallease.Revoked, true, 1, stale, execution.CodeOK, ""},
		{"revoked", credentiallease.Revoked, true, 1, nil, execution.CodeCredentialRefused, "1:refused(8,23) 1:void 1:closed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // a node that tells nothing is asked again after a second
			l := &ledger{}
			var mu sync.Mutex
			refused := 0
			r := keyed(t, setup{nodes: []string{"a"}, work: func(w *work) {
				w.input()
				mu.Lock()
				refused++
				n := refused
				if n == 1 && c.current != nil {
					l.mu.Lock()
					l.current = c.current // only now: the fence before the open has passed
					l.mu.Unlock()
				}
				mu.Unlock()
				if n > c.times {
					w.answer("paid")
					return
				}
				w.refuses(c.reason, c.rejected)
			}}, l)
			o, _ := r.run(r.tunnel("run-1", "{}"))
			if code(o) != c.code {
				t.Errorf("%v, want %v", code(o), c.code)
			}
			if f := o.Failure; f != nil && (f.Lease.Reason != uint8(c.reason) || f.Lease.Field != 23 || strings.Contains(f.Text, c.reason.String())) {
				t.Errorf("%+v", f)
			}
			if c.told != "" && l.all() != c.told {
				t.Errorf("told %s, want %s", l.all(), c.told)
			}
			r.idle()
		})
	}
}

// E19: a refusal is final, as a rejection and as a terminal, although another node is free that may be given the key, and another
// route has another key: one error, one lease, and the other node isn't asked.
func TestARefusedLeaseGoesNowhereElse(t *testing.T) {
	for _, rejected := range []bool{true, false} {
		for _, reason := range []credentiallease.Reason{credentiallease.BadSignature, credentiallease.WrongRecipient, credentiallease.Disabled,
			credentiallease.ClockUnsynced, credentiallease.OpenFailed, credentiallease.Unused, 200} {
			l := &ledger{}
			r := keyed(t, setup{nodes: []string{"a", "b"}, work: func(w *work) { w.input(); w.refuses(reason, rejected) }}, l)
			o, _ := r.run(r.tunnel("run-1", "{}"))
			if n := r.node("a", 1).openCount() + r.node("b", 1).openCount(); code(o) != execution.CodeCredentialRefused || n != 1 || l.issued() != 1 || o.Attempts != 1 {
				t.Errorf("%v: %v, %d opens, %d leases", reason, code(o), n, l.issued())
			}
			r.idle()
		}
	}
}

// CR-10, the fence: a key that changes between the lease and the open isn't used; what isn't sent is void, what was sent on a link
// that went may have been used.
func TestLeasesAreFenced(t *testing.T) {
	l := &ledger{current: func(n int) bool { return n > 2 }}
	r := keyed(t, setup{nodes: []string{"a"}, work: func(w *work) { w.input(); w.answer("paid") }}, l)
	if o, _ := r.run(r.tunnel("run-1", "{}")); !o.OK() || r.node("a", 1).openCount() != 1 {
		t.Errorf("%+v, %d opens", o, r.node("a", 1).openCount())
	}
	if want := "1:void 1:closed 2:void 2:closed 3:used 3:closed"; l.all() != want {
		t.Errorf("told %s, want %s", l.all(), want)
	}

	l = &ledger{}
	r = keyed(t, setup{nodes: []string{"a"}, work: func(w *work) { w.accept() }}, l)
	p := r.submit(r.tunnel("run-1", "{}"), &recorder{})
	untilAccepted(r, p)
	r.node("a", 1).edge.Close(transport.ReasonLost)
	if o := r.outcome(p); code(o) != execution.CodeNodeLost || l.all() != "1:lost 1:closed" {
		t.Errorf("%v, told %s", code(o), l.all())
	}
}

// CR-05, E46: what has the key in it doesn't reach the caller, in whatever part of an answer it is.
func TestReflectedKeysAreWithheld(t *testing.T) {
	for name, c := range map[string]struct {
		work func(w *work)
		head bool
		body string
	}{
		"in a header": {func(w *work) {
			w.accept()
			w.head(200, &pb.Header{Name: "X-Echo", Value: []byte("Bearer " + secret)})
			w.body("b")
		}, false, ""},
		"in the body": {func(w *work) { w.accept(); w.head(400); w.body("before "); w.body("key " + secret) }, true, "before "},
		"in two pieces": {func(w *work) {
			w.accept()
			w.head(400)
			w.body("before " + secret[:10])
			w.body(secret[10:])
		}, true, "before "},
		"in a failure's text": {func(w *work) {
			w.accept()
			w.finish(pb.RunStatus_RUN_STATUS_ERROR)
			w.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Error{Error: &pb.Failure{Code: pb.FailureCode_FAILURE_CODE_UPSTREAM_ERROR,
				Origin: pb.Origin_ORIGIN_PROVIDER, Text: "bad key " + secret}}})
		}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := keyed(t, setup{nodes: []string{"a"}, work: func(w *work) { w.input(); c.work(w) }}, &ledger{})
			o, got := r.run(r.tunnel("run-1", "{}"))
			if code(o) != execution.CodeCredentialReflected || o.HeadSent != c.head || got.text() != c.body {
				t.Errorf("%+v, head %v, body %q", o.Failure, o.HeadSent, got.text())
			}
			if shown := fmt.Sprint(o.Failure, got.header, got.text()); strings.Contains(shown, secret) || strings.Contains(shown, secret[:10]) {
				t.Errorf("the key shows in %s", shown)
			}
			r.idle()
		})
	}
	r := keyed(t, setup{nodes: []string{"a"}, work: func(w *work) { w.input(); w.answer("ends in " + secret[:10]) }}, &ledger{})
	if o, got := r.run(r.tunnel("run-1", "{}")); !o.OK() || got.text() != "ends in "+secret[:10] || o.BytesOut != int64(len(got.text())) {
		t.Errorf("an answer that only ends like the key: %+v %q", o, got.text())
	}
}

// What is compressed can't be searched, and doesn't reach the caller either; a body as it is does. (found by attack)
func TestCompressedAnswersAreWithheld(t *testing.T) {
	for value, want := range map[string]execution.Code{"gzip": execution.CodeUpstreamError, "identity, br": execution.CodeUpstreamError, "Identity": 0} {
		r := keyed(t, setup{nodes: []string{"a"}, work: func(w *work) {
			w.input()
			w.accept()
			w.head(200, &pb.Header{Name: "content-encoding", Value: []byte(value)})
			w.body("body")
			w.end(4)
		}}, &ledger{})
		if o, got := r.run(r.tunnel("run-1", "{}")); code(o) != want || o.HeadSent != (want == 0) || (got.text() == "body") != (want == 0) {
			t.Errorf("%s: %+v %q", value, o.Failure, got.text())
		}
		r.idle()
	}
}

// A node that isn't the slot's is no candidate, however free it is.
func TestOnlyTheSlotsNodesAreCandidates(t *testing.T) {
	l := &ledger{}
	r := keyed(t, setup{nodes: []string{"c"}, route: ", queue: {depth: 0}", work: func(w *work) { w.answer("free") }}, l)
	if o, _ := r.run(r.tunnel("run-1", "{}")); o.OK() || l.issued() != 0 || r.node("c", 1).openCount() != 0 {
		t.Errorf("%+v", o)
	}
	if routes := r.state.Load().Routes(); !slices.Contains(routes[0].SlotNodes, "a") {
		t.Error("the rig's route has no slot")
	}
}
