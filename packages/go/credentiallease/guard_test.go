package credentiallease

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestGoodLease(t *testing.T) {
	w := newWorld(t)
	got, err := w.whole(w.issue(t), testBinding())
	check(t, err)
	if got != goodValue {
		t.Errorf("sent %q", got)
	}
}

func TestGuardNeedsNames(t *testing.T) {
	for _, c := range []Config{{EdgeID: "e", Generation: 1}, {NodeID: "n", Generation: 1}, {NodeID: "n", EdgeID: "e"}} {
		if _, err := NewGuard(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// A guard that was told nothing yet refuses everything.
func TestGuardRefusesBeforeItKnows(t *testing.T) {
	w := newWorld(t)
	wire := w.issue(t)
	var err error
	w.guard, err = NewGuard(Config{NodeID: "gpu-1", EdgeID: "edge-a", Generation: 7})
	check(t, err)
	_, err = w.whole(wire, testBinding())
	wantRefusal(t, err, UnknownKey, FieldNone)
	check(t, w.guard.Project(w.projection(3)))
	_, err = w.whole(wire, testBinding())
	wantRefusal(t, err, WrongRecipient, FieldRecipientKey)
	w.guard.UseRecipient(w.recipient, w.now)
	_, err = w.whole(wire, testBinding())
	check(t, err)
}

// A9: a lease with every fault is refused for the first, and so on down the list.
func TestOrderOfChecks(t *testing.T) {
	w := newWorld(t)
	b := testBinding()
	b.Path = "/other"
	d := w.draft()
	d.signer = GenerateSigningKey()
	d.claims.KeyID, d.claims.Issuer, d.claims.NodeID, d.claims.RecipientKeyID = "x", "edge-b", "gpu-2", "y"
	d.claims.Generation, d.claims.Projection, d.claims.Slot, d.claims.SlotRevision = 6, 2, "closed", 99
	d.claims.ProfileRevision, d.claims.RouteRevision = 1, 1
	d.claims.NotBefore, d.claims.ExpiresAt = edgeTime+30*second, edgeTime+3600*second
	version, size, sig := uint32(2), 10, byte(1)
	d.corrupted = func(e *envelope) {
		e.version, e.enc[0] = version, e.enc[0]^sig
		e.enc = e.enc[:len(e.enc)-size]
	}
	for _, step := range []struct {
		reason Reason
		field  Field
		heal   func()
	}{
		{UnsupportedVersion, FieldNone, func() { version = 1 }},
		{Malformed, FieldEnc, func() { size = 0 }},
		{UnknownKey, FieldNone, func() { d.signer = w.signer }},
		{BadSignature, FieldNone, func() { sig = 0; d.claims.Path = "no slash" }},
		{Malformed, FieldPath, func() { d.claims.Path = testBinding().Path }},
		{BindingMismatch, FieldKeyID, func() { d.claims.KeyID = w.signer.ID() }},
		{BindingMismatch, FieldIssuer, func() { d.claims.Issuer = "edge-a" }},
		{WrongRecipient, FieldNodeID, func() { d.claims.NodeID = "gpu-1" }},
		{WrongRecipient, FieldRecipientKey, func() { d.claims.RecipientKeyID = w.recipient.ID() }},
		{StaleGeneration, FieldConnection, func() { d.claims.Generation = 7 }},
		{StaleGeneration, FieldProjection, func() { d.claims.Projection = 3 }},
		{Disabled, FieldNone, func() { d.claims.Slot = "openai-main" }},
		{Revoked, FieldNone, func() { d.claims.SlotRevision = 101 }},
		{StaleRevision, FieldProfile, func() { d.claims.ProfileRevision = 12 }},
		{StaleRevision, FieldRoute, func() { d.claims.RouteRevision = 11 }},
		{NotYetValid, FieldNone, func() { d.claims.NotBefore = edgeTime }},
		{TTLTooLong, FieldNone, func() { d.claims.ExpiresAt = edgeTime }},
		{Malformed, FieldExpiresAt, func() { d.claims.NotBefore-- }},
		{Expired, FieldNone, func() { d.claims.ExpiresAt++ }},
		{BindingMismatch, FieldPath, func() { b.Path, d.claims.Origin, b.Origin = testBinding().Path, "http://x:1", "http://x:1" }},
		{PlaintextOriginRefused, FieldOrigin, func() { d.claims.Origin, b.Origin = testBinding().Origin, testBinding().Origin; w.guard.seen.max = 0 }},
		{ReplayCacheFull, FieldNone, func() { w.guard.seen.max = 1 }},
	} {
		_, err := w.guard.Verify(d.wire(t), b, w.now)
		wantRefusal(t, err, step.reason, step.field)
		step.heal()
	}
	_, err := w.guard.Verify(d.wire(t), b, w.now)
	check(t, err)
}

// E8: each field of what the node is about to do.
func TestBindingIsExact(t *testing.T) {
	w := newWorld(t)
	wire := w.issue(t)
	changes := append(bindingChanges(),
		bindingChange{FieldRoute, func(b *Binding) { b.Route = "slow" }},
		bindingChange{FieldSlot, func(b *Binding) { b.Slot = "closed" }},
		bindingChange{FieldProfile, func(b *Binding) { b.Profile = "x" }})
	for _, c := range changes {
		b := testBinding()
		c.to(&b)
		_, err := w.guard.Verify(wire, b, w.now)
		wantRefusal(t, err, BindingMismatch, c.field)
	}
	both, own := testBinding(), testBinding()
	if both.Attempt, own.Attempt = 0, 0; both.differs(&own) != FieldAttempt {
		t.Error("two attempts that aren't known agree")
	}
	for i, own := range []Binding{{}, testBinding()} {
		both := testBinding()
		both.Principal, own.Principal = "", ""
		if f := both.differs(&own); f != FieldPrincipal {
			t.Errorf("%d: %v differs", i, f)
		}
	}
	// None of the refusals above took the lease's id.
	_, err := w.whole(wire, testBinding())
	check(t, err)
}

// E10, CR-10: what was verified under an older state isn't sent under a newer one, and a floor never goes down.
func TestStateChangesBetweenVerifyAndSend(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		reason Reason
		field  Field
	}{
		"rotated":      {func(w *world) { w.guard.Revoke(Revocation{Slot: "openai-main", MinRevision: 102}) }, Revoked, FieldNone},
		"disabled":     {func(w *world) { w.guard.Revoke(Revocation{Slot: "openai-main", MinRevision: 102, Disabled: true}) }, Disabled, FieldNone},
		"reconfigured": {func(w *world) { _ = w.guard.Project(w.projection(4)); w.guard.Settle(4) }, StaleGeneration, FieldProjection},
		"closed":       {func(w *world) { w.guard.Close() }, StaleGeneration, FieldConnection},
		"clock lost":   {func(w *world) { w.now.Synced = false }, ClockUnsynced, FieldNone},
		"late":         {func(w *world) { w.now = at(edgeTime + 60*second) }, Expired, FieldNone},
		"route":        {func(w *world) { p := w.projection(3); p.Routes[0].Number++; _ = w.guard.Project(p) }, StaleRevision, FieldRoute},
		"slot gone":    {func(w *world) { p := w.projection(3); p.Slots = nil; _ = w.guard.Project(p) }, Disabled, FieldNone},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := w.ready(t, w.issue(t))
			c.change(w)
			got, err := w.redeem(h)
			wantRefusal(t, err, c.reason, c.field)
			if got != "" {
				t.Error("the secret was sent")
			}
			if out := h.End(); out != (Outcome{Refused, Refusal{c.reason, c.field}}) {
				t.Errorf("outcome %+v", out)
			}
		})
	}
}

// A node that takes in a configuration works by it a while before its edge knows: what is issued meanwhile names the one before,
// and was refused twice in a row, so that each reload failed every request until the node's providers had been asked.
func TestLeasesAcrossARefresh(t *testing.T) {
	w := newWorld(t)
	check(t, w.guard.Project(w.projection(4)))
	check(t, w.guard.Project(w.projection(5)))
	if got, err := w.redeem(w.ready(t, w.issue(t))); err != nil || got != goodValue {
		t.Errorf("before the edge knows: %q, %v", got, err)
	}
	w.guard.Settle(9) // what isn't in force yet can't be settled
	w.grant.Projection = 5
	if got, err := w.redeem(w.ready(t, w.issue(t))); err != nil || got != goodValue {
		t.Errorf("by the newest: %q, %v", got, err)
	}
	w.grant.Projection = 4
	_, err := w.guard.Verify(w.issue(t), testBinding(), w.now)
	wantRefusal(t, err, StaleGeneration, FieldProjection)
	w.grant.Projection = 6
	_, err = w.guard.Verify(w.issue(t), testBinding(), w.now)
	wantRefusal(t, err, StaleGeneration, FieldProjection)
}

func TestProjections(t *testing.T) {
	w := newWorld(t)
	state := func() error { _, err := w.whole(w.issue(t), testBinding()); return err }
	check(t, state())
	w.guard.Revoke(Revocation{Slot: "openai-main", MinRevision: 101, Disabled: true})
	wantRefusal(t, state(), Disabled, FieldNone)
	// A projection that was made before the revocation doesn't take it back, whatever its number.
	check(t, w.guard.Project(w.projection(3)))
	wantRefusal(t, state(), Disabled, FieldNone)
	check(t, w.guard.Project(w.projection(4)))
	w.grant.Projection = 4
	wantRefusal(t, state(), Disabled, FieldNone)
	p := w.projection(4)
	p.Slots[0].MinRevision = 102
	check(t, w.guard.Project(p))
	w.grant.SlotRevision = 102
	check(t, state())
	w.grant.SlotRevision = 101 // the projection's floor before
	wantRefusal(t, state(), Revoked, FieldNone)
	for _, number := range []uint64{0, 3} {
		if w.guard.Project(w.projection(number)) == nil {
			t.Errorf("projection %d is accepted after 4", number)
		}
	}
	p = w.projection(5)
	p.Keys[0].ID = GenerateSigningKey().ID()
	if w.guard.Project(p) == nil {
		t.Error("a key under another's id is accepted")
	}
	w.grant.SlotRevision = 102
	check(t, state())
	p = w.projection(4)
	p.MaxTTL, p.Tolerance = 30*time.Second, time.Hour
	check(t, w.guard.Project(p))
	wantRefusal(t, state(), TTLTooLong, FieldNone)
	d := w.draft()
	d.claims.NotBefore += 6 * second
	_, err := w.guard.Verify(d.wire(t), testBinding(), w.now)
	wantRefusal(t, err, NotYetValid, FieldNone)
}

// CR-10: of a slot the state with the higher MinRevision counts, whichever way it came and in whatever order; disabled
// counts of the same one. So a push enables a slot, and a late message of before doesn't disable it again.
func TestTheLaterSlotStateCounts(t *testing.T) {
	told := func(w *world, way string, minRevision uint64, disabled bool) {
		if way == "push" {
			w.guard.Revoke(Revocation{Slot: "openai-main", MinRevision: minRevision, Disabled: disabled})
			return
		}
		p := w.projection(3)
		p.Slots[0] = SlotState{ID: "openai-main", MinRevision: minRevision, Disabled: disabled}
		check(t, w.guard.Project(p))
	}
	for _, first := range []string{"push", "projection"} {
		for _, second := range []string{"push", "projection"} {
			w := newWorld(t)
			state := func(revision uint64) error {
				w.grant.SlotRevision = revision
				_, err := w.whole(w.issue(t), testBinding())
				return err
			}
			told(w, first, 110, true)
			wantRefusal(t, state(120), Disabled, FieldNone)
			told(w, second, 110, false)
			wantRefusal(t, state(120), Disabled, FieldNone)
			told(w, second, 111, false)
			check(t, state(111))
			wantRefusal(t, state(110), Revoked, FieldNone)
			told(w, first, 110, true)
			check(t, state(111))
			told(w, first, 111, true)
			wantRefusal(t, state(111), Disabled, FieldNone)
		}
	}
}

// E4, A6: rotation. Both keys verify for a while; the old one ends with its time, and at once when it is removed.
func TestSigningKeyRotation(t *testing.T) {
	w := newWorld(t)
	old, next := w.signer, GenerateSigningKey()
	p := w.projection(3)
	p.Keys = []VerifyKey{{ID: old.ID(), Public: old.Public(), NotAfter: edgeTime + 125*second}, {ID: next.ID(), Public: next.Public(), NotBefore: edgeTime}}
	check(t, w.guard.Project(p))
	for _, k := range []*SigningKey{old, next} {
		w.signer = k
		_, err := w.whole(w.issue(t), testBinding())
		check(t, err)
	}
	w.signer, w.now = next, at(edgeTime-1)
	_, err := w.whole(w.issue(t), testBinding())
	wantRefusal(t, err, UnknownKey, FieldNone)
	w.signer, w.now = old, at(edgeTime+125*second)
	_, err = w.whole(w.issue(t), testBinding())
	wantRefusal(t, err, UnknownKey, FieldNone)
	w.now = at(edgeTime)
	h := w.ready(t, w.issue(t))
	p.Keys = p.Keys[1:]
	check(t, w.guard.Project(p))
	_, err = w.redeem(h)
	wantRefusal(t, err, UnknownKey, FieldNone)
}

// A6: a recipient key that was replaced opens what was sealed to it until nothing of it can be alive, and is gone then.
func TestRecipientRotation(t *testing.T) {
	w := newWorld(t)
	old := w.recipient
	wire := w.issueAt(t, edgeTime+119*second)
	next, err := NewRecipientKey()
	check(t, err)
	w.guard.UseRecipient(next, Time{}) // the clock isn't synchronized just now
	w.guard.Expire(at(edgeTime))
	w.now = at(edgeTime + 120*second)
	_, err = w.whole(wire, testBinding())
	check(t, err)
	w.guard.Expire(at(edgeTime + 125*second - 1))
	if _, ok := old.box.get(); !ok {
		t.Error("the old key is gone too early")
	}
	_, err = w.guard.Verify(wire, testBinding(), at(edgeTime+125*second))
	wantRefusal(t, err, WrongRecipient, FieldRecipientKey)
	if _, ok := old.box.get(); ok {
		t.Error("the old key is still there")
	}
	w.now = at(edgeTime + 130*second)
	_, err = w.whole(w.issue(t), testBinding())
	wantRefusal(t, err, WrongRecipient, FieldRecipientKey)
	w.proven = prove(t, next, testTranscript())
	_, err = w.whole(w.issue(t), testBinding())
	check(t, err)
	for range 2 * maxRecipients {
		k, err := NewRecipientKey()
		check(t, err)
		w.guard.UseRecipient(k, w.now)
	}
	if n := len(w.guard.recipients); n != maxRecipients {
		t.Errorf("%d recipient keys are kept", n)
	}
	w.guard.Close()
	late, err := NewRecipientKey()
	check(t, err)
	w.guard.UseRecipient(late, w.now)
	if _, ok := late.box.get(); ok || len(w.guard.recipients) != 0 || len(w.guard.seen.seen) != 0 {
		t.Error("a closed guard keeps a key")
	}
}

// E11, CR-13: not knowing the time exactly makes a lease end earlier and begin later, never the other way.
func TestTimeIsJudgedFromBothEnds(t *testing.T) {
	w := newWorld(t)
	// A lease that was made long before it begins is as old as it is.
	early := w.draft()
	early.claims.IssuedAt -= 61 * second
	_, err := w.guard.Verify(early.wire(t), testBinding(), w.now)
	wantRefusal(t, err, TTLTooLong, FieldNone)
	late := w.draft()
	late.claims.IssuedAt, late.claims.NotBefore = edgeTime+50*second, edgeTime-61*second
	_, err = w.guard.Verify(late.wire(t), testBinding(), w.now)
	wantRefusal(t, err, TTLTooLong, FieldNone)
	for _, c := range []struct {
		now    Time
		reason Reason
	}{
		{Time{edgeTime - 5*second, edgeTime + 59*second, true}, 0},
		{Time{edgeTime - 5*second - 1, edgeTime, true}, NotYetValid},
		{Time{edgeTime, edgeTime + 60*second, true}, Expired},
		{Time{edgeTime, edgeTime + 60*second - 1, true}, 0},
		{Time{edgeTime, edgeTime, false}, ClockUnsynced},
	} {
		h, err := w.guard.Verify(w.issueAt(t, edgeTime), testBinding(), c.now)
		if c.reason == 0 {
			check(t, err)
			h.End()
			continue
		}
		wantRefusal(t, err, c.reason, FieldNone)
	}
}

// E12: of many at once exactly one gets the lease.
func TestOneOfManyGetsIt(t *testing.T) {
	w := newWorld(t)
	wire := w.issue(t)
	const many = 64
	errs := make([]error, many)
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() { _, errs[i] = w.guard.Verify(wire, testBinding(), w.now) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		wantRefusal(t, err, Replayed, FieldNone)
	}
	if won != 1 {
		t.Errorf("%d got it", won)
	}
}

// E13: a full set refuses what is new and still knows what is old; leases that weren't signed don't fill it.
func TestReplaySetFull(t *testing.T) {
	w := newWorld(t)
	w.guard.seen.max = 2
	junk := w.draft()
	for range 5 {
		junk.corrupted = func(e *envelope) { e.sig[0] ^= 1 }
		_, err := w.guard.Verify(junk.wire(t), testBinding(), w.now)
		wantRefusal(t, err, BadSignature, FieldNone)
		other := testBinding()
		other.Path = "/other"
		_, err = w.guard.Verify(w.issue(t), other, w.now)
		wantRefusal(t, err, BindingMismatch, FieldPath)
	}
	first, second_ := w.issue(t), w.issue(t)
	w.ready(t, first)
	w.ready(t, second_)
	_, err := w.guard.Verify(w.issue(t), testBinding(), w.now)
	wantRefusal(t, err, ReplayCacheFull, FieldNone)
	_, err = w.guard.Verify(first, testBinding(), w.now)
	wantRefusal(t, err, Replayed, FieldNone)
	w.now = at(edgeTime + 65*second)
	_, err = w.guard.Verify(w.issue(t), testBinding(), w.now)
	check(t, err)
}

// Verify keeps no part of the caller's buffer.
func TestVerifyCopies(t *testing.T) {
	w := newWorld(t)
	wire := w.issue(t)
	h := w.ready(t, wire)
	clear(wire)
	got, err := w.redeem(h)
	check(t, err)
	if got != goodValue {
		t.Error("the lease changed with the buffer")
	}
}

// No refusal and no claim that is shown quotes a secret or a value of a lease.
func TestRefusalsNameFieldsOnly(t *testing.T) {
	s := newVectorSource(t)
	for _, v := range s.vectors() {
		v.Lease = v.make(s)
		said, _ := v.run(t)
		for _, value := range []string{goodValue, "gpu-1", "team-a", "api.openai.com", "/v1/"} {
			if strings.Contains(said, value) {
				t.Errorf("%s says %q", v.Name, said)
			}
		}
	}
	w := newWorld(t)
	if wire := w.issue(t); bytes.Contains(wire, []byte(goodValue)) {
		t.Error("the lease has the secret in clear")
	}
}
