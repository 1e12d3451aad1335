package credentiallease

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// E14: opening before the node's admission, before a connection was chosen, and a second time.
func TestStepsInOrder(t *testing.T) {
	w := newWorld(t)
	early, err := w.guard.Verify(w.issue(t), testBinding(), w.now)
	check(t, err)
	_, err = w.redeem(early)
	wantRefusal(t, err, UnsealedTooEarly, FieldNone)
	wantRefusal(t, early.Admit(), UnsealedTooEarly, FieldNone)

	unarmed, err := w.guard.Verify(w.issue(t), testBinding(), w.now)
	check(t, err)
	check(t, unarmed.Admit())
	_, err = w.redeem(unarmed)
	wantRefusal(t, err, UnsealedTooEarly, FieldNone)

	twice := w.ready(t, w.issue(t))
	_, err = w.redeem(twice)
	check(t, err)
	_, err = w.redeem(twice)
	wantRefusal(t, err, Replayed, FieldNone)
	if out := twice.End(); out != (Outcome{State: Committed}) || twice.End() != out {
		t.Errorf("outcome %+v", out)
	}
	if got := twice.LeaseID(); len(got) != 32 || twice.Claims().RunID != "run-1" {
		t.Errorf("lease %q of run %q", got, twice.Claims().RunID)
	}
}

// E21: a transport that sends a request again on a second connection gets no second secret, sent or not.
func TestSecondConnection(t *testing.T) {
	w := newWorld(t)
	unsent := w.ready(t, w.issue(t))
	wantRefusal(t, unsent.Arm(), Replayed, FieldNone)
	_, err := w.redeem(unsent)
	wantRefusal(t, err, Replayed, FieldNone)
	sent := w.ready(t, w.issue(t))
	_, err = w.redeem(sent)
	check(t, err)
	wantRefusal(t, sent.Arm(), Replayed, FieldNone)
	if out := sent.End(); out.State != Committed {
		t.Errorf("outcome %+v", out)
	}
}

// E14: of many that redeem at once, one sends.
func TestOneSends(t *testing.T) {
	w := newWorld(t)
	h := w.ready(t, w.issue(t))
	var mu sync.Mutex
	sent := 0
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			_ = h.Redeem(make([]byte, MaxSecret), func() Time { return w.now }, func([]byte) error {
				mu.Lock()
				defer mu.Unlock()
				sent++
				return nil
			})
		})
	}
	wg.Wait()
	if sent > 1 {
		t.Errorf("sent %d times", sent)
	}
}

// The page is cleared however Redeem ends, and holds nothing but the secret while it is sent.
func TestPageIsCleared(t *testing.T) {
	w := newWorld(t)
	failed := errors.New("reset")
	for name, send := range map[string]func([]byte) error{
		"sent":     func(secret []byte) error { return nil },
		"failed":   func(secret []byte) error { return failed },
		"panicked": func(secret []byte) error { panic("in send") },
	} {
		page := make([]byte, MaxSecret)
		h := w.ready(t, w.issue(t))
		func() {
			defer func() { _ = recover() }()
			_ = h.Redeem(page, func() Time { return w.now }, func(secret []byte) error {
				if string(secret) != goodValue || cap(secret) != len(goodValue) || &secret[0] != &page[0] {
					t.Errorf("%s: secret %q of capacity %d", name, secret, cap(secret))
				}
				return send(secret)
			})
		}()
		if !bytes.Equal(page, make([]byte, len(page))) {
			t.Errorf("%s: the page isn't cleared", name)
		}
		if out := h.End(); out.State != Committed {
			t.Errorf("%s: %+v", name, out)
		}
	}
	// Revoked between opening and committing.
	page, calls := make([]byte, MaxSecret), 0
	h := w.ready(t, w.issue(t))
	err := h.Redeem(page, func() Time {
		if calls++; calls == 2 {
			if !strings.HasPrefix(string(page), goodValue) {
				t.Error("the second look at the clock isn't after opening")
			}
			w.guard.Revoke(Revocation{Slot: "openai-main", MinRevision: 102})
		}
		return w.now
	}, func([]byte) error { t.Error("sent after Revoke"); return nil })
	wantRefusal(t, err, Revoked, FieldNone)
	if !bytes.Equal(page, make([]byte, len(page))) {
		t.Error("revoked: the page isn't cleared")
	}
}

func TestPageTooSmall(t *testing.T) {
	w := newWorld(t)
	h := w.ready(t, w.issue(t))
	err := h.Redeem(make([]byte, len(goodValue)-1), func() Time { return w.now }, func([]byte) error { t.Error("sent"); return nil })
	wantRefusal(t, err, InjectionFailed, FieldHeadTooLarge)
	exact := w.ready(t, w.issue(t))
	check(t, exact.Redeem(make([]byte, len(goodValue)), func() Time { return w.now }, func([]byte) error { return nil }))
}

// E16: a secret that is no header value is never sent, also when the edge itself sealed it.
func TestBadSecrets(t *testing.T) {
	w := newWorld(t)
	for _, bad := range []string{"sk-x12345\r\nX-Evil: 1", "sk-x12345\x00", "sk-x12345 ", "\tsk-x12345", "sk-x\x7f12345", "short"} {
		d := w.draft()
		d.plain = pad([]byte(bad))
		got, err := w.whole(d.wire(t), testBinding())
		wantRefusal(t, err, BadSecret, FieldNone)
		if got != "" {
			t.Errorf("%q was sent", bad)
		}
	}
}

// What ends before it was sent is burnt, and says why.
func TestBurnAndEnd(t *testing.T) {
	w := newWorld(t)
	placeholder := Refusal{InjectionFailed, FieldNoPlaceholder}
	h := w.ready(t, w.issue(t))
	h.Burn(placeholder)
	h.Burn(Refusal{Reason: OriginRefused})
	_, err := w.redeem(h)
	wantRefusal(t, err, InjectionFailed, FieldNoPlaceholder)
	if out := h.End(); out != (Outcome{Refused, placeholder}) {
		t.Errorf("burnt: %+v", out)
	}
	unused := w.ready(t, w.issue(t))
	if out := unused.End(); out != (Outcome{Refused, Refusal{Reason: Unused}}) {
		t.Errorf("unused: %+v", out)
	}
	_, err = w.redeem(unused)
	wantRefusal(t, err, Unused, FieldNone)
	if len(w.guard.held) != 0 {
		t.Errorf("%d leases are still held", len(w.guard.held))
	}
	// A cancel while the lease is being opened.
	opening, calls := w.ready(t, w.issue(t)), 0
	err = opening.Redeem(make([]byte, MaxSecret), func() Time {
		if calls++; calls == 2 {
			opening.End()
		}
		return w.now
	}, func([]byte) error { t.Error("sent after its end"); return nil })
	wantRefusal(t, err, Unused, FieldNone)
}

// Revoke lists the runs that have sent it and are still on, and no others.
func TestRevokeLists(t *testing.T) {
	w := newWorld(t)
	run := func(id string, redeem bool) *Held {
		w.grant.RunID = id
		b := testBinding()
		b.RunID = id
		h, err := w.guard.Verify(w.issue(t), b, w.now)
		check(t, err)
		check(t, errors.Join(h.Admit(), h.Arm()))
		if redeem {
			_, err = w.redeem(h)
			check(t, err)
		}
		return h
	}
	run("waiting", false)
	run("ended", true).End()
	on := run("on", true)
	if got := w.guard.Revoke(Revocation{Slot: "other", Disabled: true}); got != nil {
		t.Errorf("another slot: %v", got)
	}
	if got := w.guard.Revoke(Revocation{Slot: "openai-main", MinRevision: 101}); got != nil {
		t.Errorf("a revision that still counts: %v", got)
	}
	if got := w.guard.Revoke(Revocation{Slot: "openai-main", MinRevision: 102}); !slices.Equal(got, []string{"on"}) {
		t.Errorf("listed %v", got)
	}
	if out := on.End(); out.State != Committed {
		t.Errorf("revoked after it was sent: %+v", out)
	}
}

// E15: whatever the order, the runs that sent the secret are those that Revoke lists: nothing commits after it returned.
func TestRevokeRace(t *testing.T) {
	const runs = 24
	for round := range 12 {
		w := newWorld(t)
		var mu sync.Mutex
		sent, begin := map[string]bool{}, make(chan struct{})
		var wg sync.WaitGroup
		for i := range runs {
			w.grant.RunID = fmt.Sprint("run-", i)
			b := w.grant.Binding
			h, err := w.guard.Verify(w.issue(t), b, w.now)
			check(t, err)
			check(t, errors.Join(h.Admit(), h.Arm()))
			wg.Go(func() {
				_ = h.Redeem(make([]byte, MaxSecret), func() Time { return w.now }, func([]byte) error {
					mu.Lock()
					defer mu.Unlock()
					if sent[b.RunID] = true; len(sent) == 2*round+1 {
						close(begin)
					}
					return nil
				})
			})
		}
		<-begin
		listed := w.guard.Revoke(Revocation{Slot: "openai-main", MinRevision: 102})
		wg.Wait()
		for _, id := range listed {
			if !sent[id] {
				t.Errorf("%s is listed and didn't send it", id)
			}
		}
		if len(sent) != len(listed) {
			t.Errorf("%d sent it, %d are listed", len(sent), len(listed))
		}
	}
}

// Whatever is done to a lease in whatever order, its secret is sent at most once, never before Admit and Arm, never
// after an end or a refusal, and the outcome says whether it was.
func TestRandomSteps(t *testing.T) {
	w := newWorld(t)
	rapid.Check(t, func(t *rapid.T) {
		h, err := w.guard.Verify(issueFor(w), testBinding(), w.now)
		if err != nil {
			t.Fatal(err)
		}
		sent, reached, over := 0, 0, false
		for _, op := range rapid.SliceOf(rapid.SampledFrom([]string{"admit", "arm", "redeem", "burn", "end"})).Draw(t, "ops") {
			var err error
			switch op {
			case "admit":
				err = h.Admit()
				reached = max(reached, 1)
			case "arm":
				if err = h.Arm(); err == nil {
					reached = 2
				}
			case "redeem":
				err = h.Redeem(make([]byte, MaxSecret), func() Time { return w.now }, func([]byte) error {
					if sent++; reached != 2 || over {
						t.Fatalf("sent after %d steps, over: %v", reached, over)
					}
					return nil
				})
			case "burn":
				h.Burn(Refusal{Reason: OriginRefused})
				over = true
			case "end":
				h.End()
				over = true
			}
			over = over || err != nil
		}
		if out := h.End(); sent > 1 || (out.State == Committed) != (sent == 1) || (out.State == Refused) != (out.Refusal.Reason != 0) {
			t.Fatalf("sent %d times, outcome %+v", sent, out)
		}
	})
}

func issueFor(w *world) []byte {
	l, err := NewIssuer("edge-a", w.signer).Issue(w.proven, w.grant, w.secret, w.now.Latest, DefaultTTL)
	if err != nil {
		panic(err)
	}
	return l.Wire
}
