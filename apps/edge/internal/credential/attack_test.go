package credential

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// moved is the rig's configuration with the slot for another provider, whose key comes from another file.
func (r *rig) moved(file string) func(e *config.Edge) {
	return func(e *config.Edge) {
		for i := range e.Nodes {
			e.Nodes[i].Adapters[0].BaseURL = "https://api.example.org/v1"
		}
		e.Profiles[0].Origin = "https://api.example.org:443"
		e.Slots[0].Source.Name = file
	}
}

// A slot that becomes another provider's takes no key along: while the new source can't be read it lends nothing, although
// the old key was good a moment ago. (found by attack; CVE-2024-6587 is of this kind)
func TestAnOldKeyDoesNotGoToANewPlace(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 1)
	r.lend(to, "before").Used()
	other := r.dir + "/other.key"

	r.configure(r.moved(other))
	if why := r.refused(r.order(to, "between")); why == "" { // the store hasn't taken it in yet
		t.Error("the old key is lent for the new place")
	}
	begun, free := make(chan struct{}), make(chan struct{})
	read := r.store.sources.private
	r.store.sources.private = func(path string, most int, mounted bool) ([]byte, error) {
		close(begun)
		<-free
		return read(path, most, mounted)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.store.Reconfigured()
	}()
	<-begun
	if why := r.refused(r.order(to, "while it is read")); !strings.HasPrefix(why, "disabled") {
		t.Errorf("lent for the new place: %q", why)
	}
	close(free)
	<-done
	r.store.sources.private = read
	if why := r.refused(r.order(to, "after")); !strings.HasPrefix(why, "disabled") {
		t.Errorf("lent for the new place: %q", why)
	}
	if s := r.status(); s.State != StateDisabled || s.Length != 0 {
		t.Errorf("%+v", s)
	}

	r.store.Gone("gpu-1", 1) // nobody waits for its word
	check(t, os.WriteFile(other, []byte(keyB+"\n"), 0o600))
	_, err := r.store.Refresh(t.Context(), "main")
	check(t, err)
	r.lend(to, "with its own").Used()
}

// The last key of a source has its grace only as long as that source is the one that is meant.
func TestAnotherSourceHasNoGrace(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 1)
	r.configure(func(e *config.Edge) { e.Slots[0].Source.Name = r.dir + "/missing.key" })
	r.store.Reconfigured()
	if why := r.refused(r.order(to, "run")); !strings.HasPrefix(why, "disabled") {
		t.Errorf("the key of a source that isn't configured any more is lent: %q", why)
	}
	if len(r.pushes) != 1 || !r.pushes[0].Disabled {
		t.Errorf("nodes were told %+v", r.pushes)
	}
	r.configure(nil)
	r.store.Reconfigured()
	r.lend(to, "back").Used()
}

// twins gives the rig a second slot with the key of the first.
func (r *rig) twins(e *config.Edge) {
	twin := e.Slots[0]
	twin.ID, twin.Nodes = "twin", []string{"gpu-1", "gpu-2"}
	e.Slots = append(e.Slots, twin)
	e.Routes = append(e.Routes, config.Route{Model: "second", Adapter: "hosted", Target: "gpt", Slot: "twin"})
}

func (r *rig) second(o Order) Order {
	o.Route = r.state.Load().Route("second")
	return o
}

// unheard lends the second slot's key to a run "running" on gpu-2, which answers no change: a wait with ctx ends at once.
func (r *rig) unheard() (to credentiallease.Recipient, ctx context.Context) {
	r.t.Helper()
	to, _ = recipient(r.t, "gpu-2", 1)
	l, f := r.store.Issue(r.second(r.order(to, "running")))
	if f != nil {
		r.t.Fatal(f)
	}
	l.Used()
	r.t.Cleanup(l.Close)
	ctx, cancel := context.WithCancel(r.t.Context())
	cancel()
	return to, ctx
}

// A revoked key is worthless in every slot that has it, and in one that gets it later under whatever name. (found by attack)
func TestARevokedKeyIsRevokedEverywhere(t *testing.T) {
	r := newRig(t)
	r.configure(r.twins)
	r.open()
	to, ctx := r.unheard()
	c, err := r.store.Revoke(ctx, "main")
	check(t, err)
	if !slices.Equal(c.Running, []string{"running"}) || !slices.Equal(c.Unanswered, []string{"gpu-2"}) {
		t.Errorf("%+v", c)
	}
	if why := r.refused(r.second(r.order(to, "next"))); !strings.HasPrefix(why, "revoked") {
		t.Errorf("the twin's key: %q", why)
	}

	renamed := func(e *config.Edge) {
		e.Slots[0].ID, e.Routes[0].Slot = "renamed", "renamed"
	}
	r.configure(renamed)
	r.store.Reconfigured()
	if s := r.status(); s.ID != "renamed" || s.State != StateRevoked {
		t.Errorf("renamed: %+v", s)
	}
	r.open() // and after a restart
	if s := r.status(); s.State != StateRevoked {
		t.Errorf("after a restart: %+v", s)
	}
	r.put(keyB)
	_, err = r.store.Refresh(t.Context(), "renamed")
	check(t, err)
	if s := r.status(); s.State != StateActive {
		t.Errorf("with another key: %+v", s)
	}
}

// A key that is put in while nodes are told of a revoked one isn't revoked with it, and other slots with the revoked one
// don't lend it for as long. (seed 627 of the simulation)
func TestRevokeMeansTheKeyThatWasThere(t *testing.T) {
	r := newRig(t)
	r.configure(r.twins)
	r.open()
	to, _ := recipient(t, "gpu-1", 1)
	r.lend(to, "running").Used()
	done := make(chan Change, 1)
	go func() { // ends with the change
		c, err := r.store.Revoke(context.Background(), "main")
		if err != nil {
			t.Error(err)
		}
		done <- c
	}()
	pushes := []Push{patience.Receive(t, "nodes are told", r.told), patience.Receive(t, "of the twin, too", r.told)}
	two, _ := recipient(t, "gpu-2", 1)
	if why := r.refused(r.second(r.order(two, "next"))); !strings.HasPrefix(why, "revoked") {
		t.Errorf("the twin's key while gpu-1 is waited for: %q", why)
	}
	r.put(keyB)
	w, err := r.store.refresh(t.Context(), "main")
	check(t, err)
	if w == nil {
		t.Fatal("the new key isn't noticed")
	}
	for _, p := range pushes {
		r.store.Acked("gpu-1", 1, p.Epoch, nil)
	}
	c := patience.Receive(t, "the change is over", done)
	if s := r.status(); s.State != StateActive || c.State != s.State || c.Revision != s.Revision {
		t.Errorf("the slot with the new key: %+v, told as %+v", s, c)
	}
}

// Nodes hear of a revoked key at once, and not when the other slots with it are on disk, too. (found by review)
func TestNodesHearBeforeTheTwinIsWritten(t *testing.T) {
	r := newRig(t)
	r.configure(r.twins)
	r.open()
	written, gate := 0, make(chan struct{})
	r.broken = func(step string) error {
		if step == stepWrite { // under the store's lock for writing
			if written++; written == 2 {
				<-gate
			}
		}
		return nil
	}
	done := make(chan struct{})
	go func() { // ends with the change
		defer close(done)
		if _, err := r.store.Revoke(context.Background(), "main"); err != nil {
			t.Error(err)
		}
	}()
	if p := patience.Receive(t, "nodes are told", r.told); p.Slot != "main" {
		t.Errorf("%+v", p)
	}
	close(gate)
	patience.Receive(t, "the change is over", done)
}

// Who revokes again, to have its runs cancelled, is told of those of all slots that have the key. (found by review)
func TestRevokedAgain(t *testing.T) {
	r := newRig(t)
	r.configure(r.twins)
	r.open()
	_, ctx := r.unheard()
	for range 2 {
		c, err := r.store.Revoke(ctx, "main")
		check(t, err)
		if !slices.Equal(c.Running, []string{"running"}) || !slices.Equal(c.Unanswered, []string{"gpu-2"}) {
			t.Errorf("%+v", c)
		}
	}
}

// A change that failed may be in the file all the same. One that changes nothing must not leave it there: after a restart
// the slot is what its operator was told last. (found by review)
func TestSameIsWrittenWhenTheFileMayDiffer(t *testing.T) {
	r := newRig(t)
	var broken bool
	r.broken = func(step string) error {
		if broken && step == stepDir {
			return errors.New("i/o error")
		}
		return nil
	}
	r.open()
	_, err := r.store.Disable(t.Context(), "main")
	check(t, err)
	broken = true
	if _, err := r.store.Enable(t.Context(), "main"); err == nil {
		t.Fatal("it can't be written and is said to be done")
	}
	broken = false
	_, err = r.store.Disable(t.Context(), "main")
	check(t, err)
	r.open()
	if s := r.status(); s.State != StateDisabled {
		t.Errorf("after a restart it is %s", s.State)
	}
}

// A node that says again and again what can't be true is heard once for each lease. (found by attack)
func TestLiesAreToldOnce(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 1)
	l := r.lend(to, "run")
	l.Void()
	for range 100 {
		r.store.Ended("gpu-1", l.ID(), true, execution.LeaseRefusal{})
		r.store.Ended("gpu-2", l.ID(), true, execution.LeaseRefusal{})
	}
	if n := r.store.Counts().Security; n != 1 {
		t.Errorf("%d matters of security of one lease", n)
	}
	if n := strings.Count(r.log.String(), "lease misused"); n != 1 {
		t.Errorf("%d lines about one lease", n)
	}
}

// Leases have the time that nodes are told, whatever the wall clock is set to meanwhile: a node that has seen a later time
// takes what ends before it for replayed. (found by attack)
func TestLeasesGoByTheClockThatNodesAreTold(t *testing.T) {
	r := opened(t)
	n := r.node("gpu-1", 1)
	if key, err := n.use(r.lend(n.to, "run-1"), "run-1"); key != keyA {
		t.Fatal(err)
	}
	for _, jump := range []time.Duration{-time.Hour, time.Hour} {
		r.store.cfg.Now = func() time.Time { return time.Now().Add(jump) }
		l := r.lend(n.to, "jumped")
		if _, err := n.use(l, "jumped"); err == nil {
			t.Errorf("%v: the lease has another time than the store's clock", jump)
		}
	}
	r.store.cfg.Now = time.Now
	if key, err := n.use(r.lend(n.to, "run-2"), "run-2"); key != keyA {
		t.Error(err)
	}
}

// A file system that hangs holds up nobody: the read is given up, and not begun again until it has come back. (found by attack)
func TestAFileThatHangs(t *testing.T) {
	r := newResolver()
	r.limit = time.Millisecond
	free, begun := make(chan struct{}), make(chan struct{}, 9)
	late := []byte(keyA)
	r.private = func(string, int, bool) ([]byte, error) {
		begun <- struct{}{}
		<-free
		return late, nil
	}
	for range 3 {
		if _, err := r.read(t.Context(), fileSource("/hangs"), false); !errors.Is(err, errStuck) {
			t.Fatalf("%v", err)
		}
	}
	<-begun
	if len(begun) != 0 {
		t.Error("it was read again")
	}
	close(free)
	r.limit = patience.Limit
	until(t, "the read is back", func() bool { return r.count("/hangs", 0) == 0 })
	if late[0] != 0 {
		t.Error("what came too late wasn't cleared")
	}
	late = []byte(keyB)
	if key, err := r.read(t.Context(), fileSource("/hangs"), false); err != nil || string(key) != keyB {
		t.Errorf("read again: %v", err)
	}
}

// A node can't hide a run whose answer this edge is passing on: it has the key on the wire. (found by attack)
func TestANodeHidesNoRun(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 1)
	r.lend(to, "answering").Used()
	r.lend(to, "not begun")
	over := r.lend(to, "over")
	over.Used()
	over.Close()
	p, done := r.disabling()
	r.store.Acked("gpu-1", 1, p.Epoch, nil)
	if c := <-done; !slices.Equal(c.Running, []string{"answering"}) || len(c.Unanswered) != 0 {
		t.Errorf("%+v", c)
	}
}
