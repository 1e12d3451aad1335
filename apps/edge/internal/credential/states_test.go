package credential

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/packages/go/config"
)

// CR-10: disabled and revoked hold after a restart, and a revoked key is good never again: not by enable, not by taking the
// slot out of the configuration, not by another key in between.
func TestStatesOutliveEverything(t *testing.T) {
	r := opened(t)
	ctx := t.Context()
	change := func(f func() (Change, error), want State) {
		t.Helper()
		before := r.status().Revision
		c, err := f()
		check(t, err)
		if c.State != want || c.Revision <= before || r.status().State != want {
			t.Fatalf("%+v, want %s and above %d", c, want, before)
		}
		r.open()
		if now := r.status(); now.State != want || now.Revision != c.Revision {
			t.Fatalf("after a restart: %+v, want %s", now, want)
		}
	}
	change(func() (Change, error) { return r.store.Disable(ctx, "main") }, StateDisabled)
	change(func() (Change, error) { return r.store.Enable(ctx, "main") }, StateActive)
	change(func() (Change, error) { return r.store.Revoke(ctx, "main") }, StateRevoked)
	for name, f := range map[string]func() (Change, error){
		"enable": func() (Change, error) { return r.store.Enable(ctx, "main") }, "disable": func() (Change, error) { return r.store.Disable(ctx, "main") },
	} {
		if _, err := f(); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("%s: %v", name, err)
		}
	}
	at := r.status().Revision
	if c, err := r.store.Refresh(ctx, "main"); err != nil || c.State != StateRevoked || c.Revision != at {
		t.Errorf("%+v, %v", c, err)
	}

	r.configure(func(e *config.Edge) { e.Slots, e.Routes = nil, nil })
	r.store.Reconfigured()
	if got := r.store.Slots([]string{"main"}); got[0].MinRevision <= at || !got[0].Disabled {
		t.Errorf("%+v", got)
	}
	r.configure(nil)
	r.store.Reconfigured()
	if got := r.status(); got.State != StateRevoked {
		t.Errorf("%+v", got)
	}
	r.put(keyB)
	change(func() (Change, error) { return r.store.Refresh(ctx, "main") }, StateActive)
	r.put(keyA) // somebody puts the old one back
	change(func() (Change, error) { return r.store.Refresh(ctx, "main") }, StateRevoked)
	for name, f := range map[string]func() (Change, error){
		"disable": func() (Change, error) { return r.store.Disable(ctx, "no") }, "refresh": func() (Change, error) { return r.store.Refresh(ctx, "no") },
	} {
		if _, err := f(); !errors.Is(err, ErrUnknownSlot) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// CR-10: every key that was ever revoked stays so, whichever came after it.
func TestEveryRevokedKeyIsRemembered(t *testing.T) {
	r := opened(t)
	key := func(i int) string { return fmt.Sprintf("sk-round-%08d", i) }
	take := func(i int) State {
		t.Helper()
		r.put(key(i))
		c, err := r.store.Refresh(t.Context(), "main")
		check(t, err)
		return c.State
	}
	for i := range 5 {
		if got := take(i); got != StateActive {
			t.Fatalf("key %d is %s", i, got)
		}
		_, err := r.store.Revoke(t.Context(), "main")
		check(t, err)
		r.open()
	}
	for i := range 5 {
		if got := take(i); got != StateRevoked {
			t.Errorf("key %d is %s", i, got)
		}
	}
	if got := take(5); got != StateActive {
		t.Errorf("a new key is %s", got)
	}
}

// What was read from a source is worth nothing when the slot has another one by then.
func TestSourceMovesWhileItIsRead(t *testing.T) {
	r := opened(t)
	other := filepath.Join(r.dir, "other.key")
	check(t, os.WriteFile(other, []byte(keyB), 0o600))
	sl := r.store.slots["main"]
	read, err := r.store.readKey(t.Context(), sl.cfg.Source, false)
	check(t, err)
	r.configure(func(e *config.Edge) { e.Slots[0].Source = fileSource(other) })
	r.store.Reconfigured()
	want := r.status()
	if _, err := r.store.takeUp(sl, fileSource(r.file), read); !errors.Is(err, errMeanwhile) {
		t.Errorf("%v", err)
	}
	if got := r.status(); got.Revision != want.Revision || got.Fingerprint != want.Fingerprint || !read.secret.IsZero() {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A slot that is disabled and revoked is disabled when it has a new key.
func TestDisabledOutlivesRevoked(t *testing.T) {
	r := opened(t)
	_, err := r.store.Disable(t.Context(), "main")
	check(t, err)
	_, err = r.store.Revoke(t.Context(), "main")
	check(t, err)
	r.put(keyB)
	if c, err := r.store.Refresh(t.Context(), "main"); err != nil || c.State != StateDisabled {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := r.store.Enable(t.Context(), "main"); err != nil || c.State != StateActive {
		t.Errorf("%+v, %v", c, err)
	}
}

// The clock going backwards never lowers a revision.
func TestClockGoesBackwards(t *testing.T) {
	r := opened(t)
	records := maps.Clone(r.store.records)
	m := records["main"]
	m.Revision = uint64(time.Now().Add(100 * time.Hour).UnixMilli())
	records["main"] = m
	check(t, r.store.disk.writeBook(r.book(), r.store.install, records))
	r.open()
	for i := range uint64(3) {
		f := r.store.Disable
		if i == 1 {
			f = r.store.Enable
		}
		if c, err := f(t.Context(), "main"); err != nil || c.Revision != m.Revision+i+1 {
			t.Errorf("%+v, %v", c, err)
		}
	}
}
