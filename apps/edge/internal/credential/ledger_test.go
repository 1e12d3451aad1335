package credential

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/events"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
)

func because(r credentiallease.Reason) execution.LeaseRefusal {
	return execution.LeaseRefusal{Reason: uint8(r)}
}

// ledgerEvents are the events of protocol.md §2.E after a lease was issued.
func ledgerEvents() map[string]func(r *rig, l *Lease) {
	return map[string]func(r *rig, l *Lease){
		"used":      func(_ *rig, l *Lease) { l.Used() },
		"void":      func(_ *rig, l *Lease) { l.Void() },
		"refused":   func(_ *rig, l *Lease) { l.Refused(because(credentiallease.Expired)) },
		"lost":      func(_ *rig, l *Lease) { l.Lost() },
		"committed": func(r *rig, l *Lease) { r.store.Ended("gpu-1", l.ID(), true, execution.LeaseRefusal{}) },
		"burnt":     func(r *rig, l *Lease) { r.store.Ended("gpu-1", l.ID(), false, because(credentiallease.Unused)) },
		"attack":    func(r *rig, l *Lease) { r.store.Ended("gpu-1", l.ID(), false, because(credentiallease.Replayed)) },
		"another's": func(r *rig, l *Lease) { r.store.Ended("gpu-2", l.ID(), true, execution.LeaseRefusal{}) },
		"silence": func(_ *rig, l *Lease) {
			l.Close()
			time.Sleep(67 * time.Second)
		},
		"a long answer": func(*rig, *Lease) { time.Sleep(67 * time.Second) },
		"disable": func(r *rig, _ *Lease) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_, _ = r.store.Disable(ctx, "main")
		},
	}
}

// The edge's table of protocol.md §2.E, every cell: what becomes of a lease in each state by each event, and what is a
// matter of security. "" = nothing changes.
func TestLedgerTable(t *testing.T) {
	into := map[string]string{"issued": "", "committed": "committed", "refused": "burnt", "void": "void", "expired": "silence"}
	type cell struct {
		to       string
		security bool
	}
	rows := map[string]map[string]cell{
		"used":          {"issued": {to: "committed"}},
		"void":          {"issued": {to: "void"}},
		"refused":       {"issued": {to: "refused"}},
		"lost":          {"issued": {to: "committed"}},
		"committed":     {"issued": {to: "committed"}, "void": {security: true}, "expired": {security: true}},
		"burnt":         {"issued": {to: "refused"}},
		"attack":        {"issued": {to: "refused", security: true}},
		"another's":     {"issued": {security: true}, "committed": {security: true}, "refused": {security: true}, "void": {security: true}, "expired": {security: true}},
		"silence":       {"issued": {to: "expired"}},
		"a long answer": {},
		"disable":       {},
	}
	for event, row := range rows {
		for state, by := range into {
			t.Run(state+" "+event, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := opened(t)
					r.running()
					to, _ := recipient(t, "gpu-1", 1)
					l := r.lend(to, "run")
					if by != "" {
						ledgerEvents()[by](r, l)
					}
					synctest.Wait()
					if got := l.entry.state.String(); got != state {
						t.Fatalf("made it %s", got)
					}
					before := r.store.Counts().Security
					r.kinds()
					ledgerEvents()[event](r, l)
					synctest.Wait()
					want := row[state]
					if want.to == "" {
						want.to = state
					}
					counts := r.store.Counts()
					if got := l.entry.state.String(); got != want.to || (counts.Security > before) != want.security ||
						(r.kinds()[events.KindLeaseMisused] > 0) != want.security {
						t.Errorf("is %s, security %d; want %+v", got, counts.Security-before, want)
					}
					for result, n := range counts.Leases["main"] { // each lease ends once
						if result != want.to || n != 1 {
							t.Errorf("counted as %v", counts.Leases["main"])
						}
					}
				})
			})
		}
	}
}

// An answer that takes longer than its lease lives is no matter of security, also when its end is told late.
func TestLongAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t)
		r.running()
		to, _ := recipient(t, "gpu-1", 1)
		l := r.lend(to, "run")
		time.Sleep(time.Hour)
		r.store.Ended("gpu-1", l.ID(), true, execution.LeaseRefusal{})
		l.Close()
		if got := r.store.Counts(); got.Leases["main"]["committed"] != 1 || got.Security != 0 {
			t.Errorf("%+v", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(r.store.ledger.live) + len(r.store.ledger.ended); n != 0 {
			t.Errorf("%d leases are remembered", n)
		}
	})
}

func TestUnknownLeases(t *testing.T) {
	r := opened(t)
	for range 3 {
		r.store.Ended("gpu-1", "0123456789abcdef0123456789abcdef", true, execution.LeaseRefusal{})
	}
	if got := r.store.Counts(); got.Unknown != 3 || got.Security != 0 || len(r.kinds()) != 0 {
		t.Errorf("%+v", got)
	}
}

// What ended is remembered up to a bound; what is in use is never forgotten.
func TestLedgerIsBounded(t *testing.T) {
	l := newLedger()
	l.most = 100
	now := time.Now()
	held := &entry{id: "held", state: leaseIssued, open: true, ends: now}
	l.add(held)
	for i := range 1000 {
		e := &entry{id: fmt.Sprint(i), state: leaseIssued, open: true, ends: now}
		l.add(e)
		e.state = leaseVoid
		l.settle(e, now)
		l.settle(e, now)
	}
	if len(l.live) != 1 || len(l.ended) != 100 || len(l.order) != 100 || l.find("held") != held || l.find("999") == nil || l.find("899") != nil {
		t.Errorf("%d live, %d and %d ended", len(l.live), len(l.ended), len(l.order))
	}
	if l.lapsed(now.Add(time.Hour)); len(l.ended) != 0 || l.find("held") != held {
		t.Errorf("%d ended, an hour later", len(l.ended))
	}
}

// The key that a lease lent is searched for until the lease is closed, also when the slot has another one; then nobody has it.
func TestOldKeysAreCleared(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 1)
	one, two := r.lend(to, "one"), r.lend(to, "two")
	old := r.store.slots["main"].key
	r.put(keyB)
	_, err := r.store.refresh(t.Context(), "main")
	check(t, err)
	if !one.Scanner().Text("key="+keyA) || old.secret.IsZero() {
		t.Fatal("cleared while it is searched for")
	}
	forms := old.forms()
	one.Close()
	one.Close()
	if !two.Scanner().Text("key=" + keyA) {
		t.Fatal("cleared while it is searched for")
	}
	two.Void()
	two.Close()
	if !old.secret.IsZero() || len(old.forms()) != 0 || two.Scanner().Text(keyA) {
		t.Error("not cleared")
	}
	for _, form := range forms {
		for _, c := range form {
			if c != 0 {
				t.Fatal("a form of it isn't cleared")
			}
		}
	}
	if now := r.store.slots["main"].key; now.secret.IsZero() || now.users != 1 {
		t.Errorf("the new one has %d users", now.users)
	}
}
