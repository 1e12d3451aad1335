package credential

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/patience"
)

func (r *rig) book() string { return filepath.Join(r.dir, "state", "slots.json") }

func TestOpenAndStatus(t *testing.T) {
	r := opened(t)
	got := r.status()
	if got.State != StateActive || got.Reason != "" || got.Revision == 0 || got.Length != len(keyA) || len(got.Fingerprint) != 8 ||
		got.SourceKind != "file" || got.Profile != "openai" || got.Header != "Authorization" || got.Origin != "https://api.example.com:443" ||
		!slices.Equal(got.Nodes, []string{"gpu-1"}) || got.Since.IsZero() || got.LastRefresh.IsZero() {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"slots.json", "lease.key"} {
		info, err := os.Stat(filepath.Join(r.dir, "state", name))
		check(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", name, info.Mode())
		}
	}
	keys := r.store.Keys()
	r.open()
	if now := r.status(); now.Revision != got.Revision || now.Fingerprint != got.Fingerprint {
		t.Errorf("a restart made %+v of %+v", now, got)
	}
	if again := r.store.Keys(); len(keys) != 1 || len(again) != 1 || again[0].ID != keys[0].ID {
		t.Error("another signing key after a restart")
	}
	if states := r.store.Slots([]string{"main", "nowhere"}); states[0] != (SlotState{ID: "main", MinRevision: got.Revision}) ||
		states[1] != (SlotState{ID: "nowhere", Disabled: true}) {
		t.Errorf("%+v", states)
	}
}

// An edge that lends nothing leaves nothing behind.
func TestNothingToLend(t *testing.T) {
	r := newRig(t)
	r.configure(func(e *config.Edge) { e.Mode, e.Slots, e.Routes, e.Profiles = "dev", nil, nil, nil })
	s := r.open()
	if _, err := os.Stat(filepath.Join(r.dir, "state")); !errors.Is(err, os.ErrNotExist) || len(s.Keys()) != 0 || len(s.Status()) != 0 {
		t.Error(err)
	}
	if err := s.RotateKey(t.Context()); !errors.Is(err, errNoKeys) {
		t.Error(err)
	}
}

// E45: a source that yields no key stops the start, and the text says of which slot and which kind; an inactive slot's doesn't.
func TestOpenWithoutAKey(t *testing.T) {
	r := newRig(t)
	check(t, os.Chmod(r.file, 0o644))
	_, err := r.tryOpen()
	if err == nil || !strings.HasPrefix(err.Error(), "slot main: its source (file) is open to other users") {
		t.Fatal(err)
	}
	without(t, "the error", err.Error(), keyA, r.dir)
	check(t, os.Chmod(r.file, 0o600))
	r.open()
	_, err = r.store.Revoke(t.Context(), "main")
	check(t, err)
	check(t, os.Remove(r.file)) // what a revoked key's file should come to
	r.open()
	if got := r.status(); got.State != StateRevoked || got.Length != 0 || got.Fingerprint == "" {
		t.Errorf("%+v", got)
	}
	r.put(keyA)
	r.kinds()
	if c, err := r.store.Refresh(t.Context(), "main"); err != nil || c.State != StateRevoked {
		t.Errorf("%+v, %v", c, err)
	}
	if e := patience.Receive(t, "the change is told", r.heard.C); e.Kind != events.KindSlotChanged || e.Code != "revoked" {
		t.Errorf("%+v", e)
	}
	r.put(keyB)
	c, err := r.store.Refresh(t.Context(), "main")
	if err != nil || c.State != StateActive {
		t.Errorf("%+v, %v", c, err)
	}
}

// What isn't a whole file of states stops the start with its name: revoked keys would be good again.
func TestTornBooks(t *testing.T) {
	r := opened(t)
	whole, err := os.ReadFile(r.book())
	check(t, err)
	for name, content := range map[string]string{
		"empty": "", "cut": string(whole[:len(whole)/2]), "last byte": string(whole[:len(whole)-3]), "twice": string(whole) + string(whole),
		"newer": strings.Replace(string(whole), `"version": 1`, `"version": 2`, 1), "older": strings.Replace(string(whole), `"version": 1`, `"version": 0`, 1),
		"another file": `{"edge_id":"edge-a"}`, "unknown member": strings.Replace(string(whole), `"slots"`, `"x": 1, "slots"`, 1),
		"no key": strings.Replace(string(whole), `"fingerprint_key": "`, `"fingerprint_key": "x`, 1), "null": "null",
	} {
		check(t, os.WriteFile(r.book(), []byte(content), 0o600))
		if _, err := r.tryOpen(); err == nil || !strings.Contains(err.Error(), r.book()) {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := os.ReadFile(r.book()); string(after) != content {
			t.Errorf("%s: the file was changed", name)
		}
	}
	check(t, os.WriteFile(r.book(), whole, 0o600))
	check(t, os.Chmod(r.book(), 0o644))
	if _, err := r.tryOpen(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("%v", err)
	}
}

// A change that can't be written isn't acknowledged and not applied, at whichever step the disk fails; what is in force
// then is written as soon as the disk permits.
func TestDiskFails(t *testing.T) {
	for _, step := range []string{stepWrite, stepSync, stepRename, stepDir} {
		t.Run(step, func(t *testing.T) {
			r := opened(t)
			fail := func(name string) error {
				if name == step {
					return errBroken
				}
				return nil
			}
			r.broken = fail
			before := r.status()
			for name, f := range map[string]func() (Change, error){
				"disable": func() (Change, error) { return r.store.Disable(t.Context(), "main") },
				"revoke":  func() (Change, error) { return r.store.Revoke(t.Context(), "main") },
			} {
				if _, err := f(); !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "nothing was changed") || !strings.Contains(err.Error(), r.book()) {
					t.Errorf("%s: %v", name, err)
				}
			}
			r.put(keyB)
			if _, err := r.store.Refresh(t.Context(), "main"); !errors.Is(err, errBroken) {
				t.Errorf("rotation: %v", err)
			}
			if err := r.store.RotateKey(t.Context()); !errors.Is(err, errBroken) {
				t.Errorf("signing key: %v", err)
			}
			after := r.status()
			if after.State != StateActive || after.Revision != before.Revision || after.Fingerprint != before.Fingerprint || len(r.pushes) != 0 {
				t.Errorf("%+v, then %+v and %v", before, after, r.pushes)
			}
			r.broken = nil
			r.store.rewrite()
			r.put(keyA)
			r.open()
			if now := r.status(); now.State != StateActive || now.Revision != before.Revision {
				t.Errorf("after a restart: %+v", now)
			}
		})
	}
}

// Killed between the write and the rename: the old state holds, and what was left behind is in nobody's way.
func TestCrashBeforeTheRename(t *testing.T) {
	r := opened(t)
	died := errors.New("power is gone")
	r.broken = func(name string) error {
		if name == stepRename {
			return died
		}
		return nil
	}
	if _, err := r.store.Revoke(t.Context(), "main"); !errors.Is(err, died) {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.book() + ".new"); err != nil {
		t.Fatalf("nothing was left behind: %v", err)
	}
	check(t, os.WriteFile(r.book()+".new", []byte(`{"version":1,"sl`), 0o600)) // nor was it whole
	r.broken = nil
	r.open()
	if got := r.status(); got.State != StateActive {
		t.Errorf("%+v", got)
	}
	if _, err := r.store.Revoke(t.Context(), "main"); err != nil {
		t.Error(err)
	}
	r.open()
	if got := r.status(); got.State != StateRevoked {
		t.Errorf("%+v", got)
	}
}

// A full disk at the start is said with the file's name.
func TestOpenOnAFullDisk(t *testing.T) {
	r := newRig(t)
	r.broken = func(string) error { return errBroken }
	if _, err := r.tryOpen(); !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "slots.json") {
		t.Error(err)
	}
}

// A new key in the source is taken up without a restart, once, and is another revision of which nodes are told.
func TestRotationAndStaleSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t)
		r.running()
		first := r.status()
		wait := func(d time.Duration) SlotStatus {
			time.Sleep(d)
			synctest.Wait()
			return r.status()
		}
		if got := wait(2 * time.Minute); got.Revision != first.Revision || !got.LastRefresh.After(first.LastRefresh) || len(r.pushes) != 0 {
			t.Fatalf("%+v, %v", got, r.pushes)
		}
		r.put(keyB)
		second := wait(31 * time.Second)
		if second.Revision <= first.Revision || second.Fingerprint == first.Fingerprint || second.State != StateActive || len(r.pushes) != 1 ||
			r.pushes[0].MinRevision != second.Revision || r.pushes[0].Disabled || !slices.Equal(r.asked[0], []string{"gpu-1"}) {
			t.Fatalf("%+v, %v", second, r.pushes)
		}

		check(t, os.Remove(r.file))
		if got := wait(5 * time.Minute); got.State != StateActive || !strings.Contains(got.Reason, "doesn't exist") || got.Revision != second.Revision {
			t.Fatalf("%+v", got)
		}
		stale := wait(time.Minute)
		if stale.State != StateDisabled || !strings.Contains(stale.Reason, "doesn't exist") || stale.Length != 0 || stale.Revision <= second.Revision {
			t.Fatalf("%+v", stale)
		}
		if _, err := r.store.Enable(t.Context(), "main"); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "doesn't exist") {
			t.Error(err)
		}
		r.put(keyB) // the same key
		back := wait(31 * time.Second)
		if back.State != StateActive || back.Revision <= stale.Revision || back.Fingerprint != second.Fingerprint {
			t.Errorf("%+v", back)
		}
		kinds := r.kinds()
		if kinds[events.KindSlotStale] != 1 || kinds[events.KindSlotChanged] != 3 || r.store.Counts().RefreshFailures["main"] < 10 {
			t.Errorf("%v, %+v", kinds, r.store.Counts())
		}
	})
}

// A source that fails for a moment costs nothing.
func TestSourceFailsForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t)
		r.running()
		first := r.status()
		for range 4 {
			check(t, os.Remove(r.file))
			time.Sleep(3 * time.Minute)
			r.put(keyA)
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if got := r.status(); got.State != StateActive || got.Reason != "" || got.Revision != first.Revision {
			t.Errorf("%+v", got)
		}
	})
}

// What closes a slot by itself does so on a full disk, too, and is written later.
func TestStaleOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t)
		var full atomic.Bool
		full.Store(true)
		r.broken = func(string) error {
			if full.Load() {
				return errBroken
			}
			return nil
		}
		r.running()
		check(t, os.Remove(r.file))
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		got := r.status()
		if got.State != StateDisabled {
			t.Errorf("%+v", got)
		}
		full.Store(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		_, records, err := readBook(r.book())
		if err != nil || records["main"].Revision != got.Revision {
			t.Errorf("%+v, %v", records, err)
		}
	})
}

func TestReconfigured(t *testing.T) {
	r := opened(t)
	other := filepath.Join(r.dir, "other.key")
	add := func(e *config.Edge) {
		s := e.Slots[0]
		s.ID, s.Source = "other", fileSource(other)
		e.Slots = append(e.Slots, s)
	}
	r.configure(add)
	if err := r.store.Check(r.state.Load()); err == nil || !strings.HasPrefix(err.Error(), "slot other: its source (file) doesn't exist") {
		t.Errorf("%v", err)
	}
	if len(r.store.Status()) != 1 {
		t.Error("a check changed something")
	}
	r.store.Reconfigured() // it was there when it was checked
	if got := r.store.Status()[1]; got.State != StateDisabled || !strings.Contains(got.Reason, "doesn't exist") {
		t.Errorf("%+v", got)
	}
	check(t, os.WriteFile(other, []byte(keyB), 0o600))
	check(t, r.store.Check(r.state.Load()))
	c, err := r.store.Refresh(t.Context(), "other")
	if err != nil || c.State != StateActive {
		t.Errorf("%+v, %v", c, err)
	}
	// The source moves: the same key is the same revision, another one another.
	moved := r.status().Revision
	r.configure(func(e *config.Edge) { add(e); e.Slots[0].Source = fileSource(other) })
	r.store.Reconfigured()
	if got := r.status(); got.Revision <= moved || got.Fingerprint != r.store.Status()[1].Fingerprint {
		t.Errorf("%+v", got)
	}
	// Removed: its leases are worthless, also where nobody is told of the slot any more.
	r.configure(nil)
	was := r.store.Slots([]string{"other"})[0].MinRevision
	r.store.Reconfigured()
	if at := slices.IndexFunc(r.pushes, func(p Push) bool { return p.Slot == "other" && p.Disabled && p.MinRevision > was }); at < 0 {
		t.Errorf("%+v", r.pushes)
	}
	if len(r.store.Status()) != 1 {
		t.Error("it is still there")
	}
	to, _ := recipient(t, "gpu-1", 1)
	o := r.order(to, "run")
	o.Route = &config.Route{Model: "fast", Slot: "other"}
	if why := r.refused(o); why != "disabled(slot)" {
		t.Error(why)
	}
}

func TestInspect(t *testing.T) {
	r := newRig(t)
	e := r.edge()
	t.Setenv("IOP_TEST_PROVIDER_KEY", keyB)
	e.Slots = append(e.Slots, config.Slot{ID: "env", Source: config.SecretSource{Kind: config.SourceEnv, Name: "IOP_TEST_PROVIDER_KEY"}, Profile: "openai"},
		config.Slot{ID: "bad", Source: fileSource(filepath.Join(r.dir, "nowhere")), Profile: "openai"})
	all, err := Inspect(e)
	if err == nil || err.Error() != "slot bad: its source (file) doesn't exist" || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	if all[0].Length != len(keyA) || all[0].Fingerprint != "" || all[0].State != StateActive || all[2].State != StateDisabled || all[1].Length != len(keyB) {
		t.Errorf("%+v", all)
	}
	if _, err := os.Stat(e.StateDir); err == nil || os.Getenv("IOP_TEST_PROVIDER_KEY") != keyB {
		t.Error("it changed something")
	}
	r.open()
	_, err = r.store.Revoke(t.Context(), "main")
	check(t, err)
	all, err = Inspect(r.edge())
	if err != nil || all[0].Fingerprint != r.status().Fingerprint || all[0].State != StateRevoked {
		t.Errorf("%+v, %v", all, err)
	}
}

// Two reloads race refreshes: what was configured last is what counts, and no key of an earlier source comes back.
func TestReloadsRaceRefreshes(t *testing.T) {
	r := opened(t)
	other := filepath.Join(r.dir, "other.key")
	check(t, os.WriteFile(other, []byte(keyB), 0o600))
	to, _ := recipient(t, "gpu-1", 1)
	for i := range 20 {
		done := make(chan struct{}, 4)
		go func() { _, _ = r.store.Refresh(t.Context(), "main"); done <- struct{}{} }()
		go func() { _, _ = r.store.Refresh(t.Context(), "main"); done <- struct{}{} }()
		r.configure(func(e *config.Edge) { e.Slots[0].Source = fileSource(other) })
		go func() { r.store.Reconfigured(); done <- struct{}{} }()
		if i%2 == 0 {
			r.configure(nil)
		}
		go func() { r.store.Reconfigured(); done <- struct{}{} }()
		for range cap(done) {
			<-done
		}
		r.store.Reconfigured()
		mark := markOf(r.store.install, []byte([]string{keyA, keyB}[i%2]))
		if got := r.status(); got.State != StateActive || got.Fingerprint != fingerprint(mark) {
			t.Fatalf("round %d: %+v", i, got)
		}
		if why := r.refused(r.order(to, "run")); why != "" {
			t.Fatal(why)
		}
	}
}
