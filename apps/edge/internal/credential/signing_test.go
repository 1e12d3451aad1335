package credential

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/packages/go/credentiallease"
)

func (r *rig) signing() string { return filepath.Join(r.dir, "state", "lease.key") }

// What isn't a whole, private signing key stops the start with its name, and is never replaced.
func TestSigningKeysThatAreRefused(t *testing.T) {
	r := opened(t)
	whole, err := os.ReadFile(r.signing())
	check(t, err)
	seed := strings.TrimSpace(string(whole))
	for name, content := range map[string]string{
		"empty": "", "cut": seed[:60] + "\n", "no line end": seed, "longer": seed + "00\n", "raw": string(make([]byte, 32)), "not hex": strings.Repeat("x", 64) + "\n",
		"next without one": "next " + seed + "\n", "two nexts": seed + "\nnext " + seed + "\nnext " + seed + "\n", "old of what": seed + "\nold " + seed + "\n",
		"an old one that is short": seed + "\nold 00 1\n", "an old one without end": seed + "\nold " + seed + " x\n", "a word": seed + "\nnew " + seed + "\n",
		"an empty line": seed + "\n\n",
	} {
		check(t, os.WriteFile(r.signing(), []byte(content), 0o600))
		_, err := r.tryOpen()
		if err == nil || !strings.Contains(err.Error(), r.signing()) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		without(t, name, err.Error(), seed)
		if after, _ := os.ReadFile(r.signing()); string(after) != content {
			t.Errorf("%s: the file was changed", name)
		}
	}
	check(t, os.WriteFile(r.signing(), whole, 0o600))
	check(t, os.Chmod(r.signing(), 0o640))
	if _, err := r.tryOpen(); err == nil || !strings.Contains(err.Error(), "lease.key is open to other users of this machine (mode 0640); chmod 600 it") {
		t.Errorf("%v", err)
	}
	check(t, os.Remove(r.signing()))
	check(t, os.Mkdir(r.signing(), 0o700))
	if _, err := r.tryOpen(); err == nil || !strings.Contains(err.Error(), "isn't a regular file") {
		t.Errorf("%v", err)
	}
}

// A rotation: nodes are told of the new key, then it is used; what the old one signed stays good for as long as it lives.
func TestRotateKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t)
		n := r.node("gpu-1", 1)
		first := r.store.Keys()[0].ID
		before := r.lend(n.to, "before")
		told := 0
		r.store.OnKeys(func(context.Context) {
			told++
			n.project()
			keys := r.store.Keys()
			if len(keys) != 2 || keys[0].NotAfter != 0 || told == 1 && keys[0].ID != first || told == 2 && (keys[1].ID != first || keys[1].NotAfter == 0) {
				t.Errorf("told of %+v, time %d", keys, told)
			}
			if got, err := n.use(r.lend(n.to, "meanwhile"), "meanwhile"); err != nil || got != keyA {
				t.Errorf("meanwhile: %v", err)
			}
		})
		check(t, r.store.RotateKey(t.Context()))
		keys := r.store.Keys()
		if told != 2 || keys[0].ID == first || keys[1].NotAfter != time.Now().Add(125*time.Second).UnixMilli() {
			t.Errorf("%d, %+v", told, keys)
		}
		for run, l := range map[string]*Lease{"before": before, "after": r.lend(n.to, "after")} {
			if got, err := n.use(l, run); err != nil || got != keyA {
				t.Errorf("%s: %v", run, err)
			}
		}
		r.open()
		if now := r.store.Keys(); len(now) != 2 || now[0].ID != keys[0].ID || now[1].ID != first {
			t.Errorf("after a restart: %+v", now)
		}
		time.Sleep(126 * time.Second)
		if now := r.store.Keys(); len(now) != 1 || now[0].ID != keys[0].ID {
			t.Errorf("after two minutes: %+v", now)
		}
	})
}

// Nodes that don't answer hold a rotation up for half a minute at most; a restart in between goes on with the same new key.
func TestRotateKeyIsBoundedAndResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t)
		next, err := r.store.announce()
		check(t, err)
		r.open()
		if keys := r.store.Keys(); len(keys) != 2 || keys[1].ID != next.key.ID() {
			t.Fatalf("%+v", keys)
		}
		r.store.OnKeys(func(ctx context.Context) { <-ctx.Done() })
		begun := time.Now()
		check(t, r.store.RotateKey(t.Context()))
		if keys := r.store.Keys(); keys[0].ID != next.key.ID() || time.Since(begun) != time.Minute { // once for the new key, once for the old one's end
			t.Errorf("after %v: %+v", time.Since(begun), keys)
		}
	})
}

// E4, the edge's half: a key that is withdrawn signs nothing from then on, and nodes that know refuse what it signed.
func TestDropKey(t *testing.T) {
	r := opened(t)
	n := r.node("gpu-1", 1)
	r.store.OnKeys(func(context.Context) { n.project() })
	before, dropped := r.lend(n.to, "before"), r.store.Keys()[0].ID
	used := r.store.ring.current
	check(t, r.store.DropKey(t.Context(), dropped))
	if _, err := n.use(before, "before"); !errors.Is(err, credentiallease.Refusal{Reason: credentiallease.UnknownKey}) &&
		!errors.Is(err, credentiallease.Refusal{Reason: credentiallease.UnknownKey, Field: credentiallease.FieldKeyID}) {
		t.Errorf("%v", err)
	}
	if got, err := n.use(r.lend(n.to, "after"), "after"); err != nil || got != keyA {
		t.Errorf("%v", err)
	}
	if used.key.UseSeed(func([]byte) {}) {
		t.Error("the private key is still there")
	}
	if text, err := os.ReadFile(r.signing()); err != nil || len(text) != hex.EncodedLen(credentiallease.SeedSize)+1 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if err := r.store.DropKey(t.Context(), dropped); !errors.Is(err, errNoSuchKey) {
		t.Errorf("twice: %v", err)
	}
	check(t, r.store.RotateKey(t.Context()))
	check(t, r.store.DropKey(t.Context(), r.store.Keys()[1].ID)) // the old one
	_, err := r.store.announce()
	check(t, err)
	check(t, r.store.DropKey(t.Context(), r.store.Keys()[1].ID)) // the next one
	if keys := r.store.Keys(); len(keys) != 1 {
		t.Errorf("%+v", keys)
	}
}

// Keys are rotated under those who issue: every lease is good. Run with -race.
func TestRotateKeyWhileIssuing(t *testing.T) {
	r := opened(t)
	n := r.node("gpu-1", 1)
	done := make(chan struct{})
	go func() { // ends with its rounds
		defer close(done)
		for range 5 {
			if err := r.store.RotateKey(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}()
	for i := 0; ; i++ {
		l := r.lend(n.to, "run")
		n.project()
		if got, err := n.use(l, "run"); err != nil || got != keyA {
			t.Fatal(err)
		}
		l.Close()
		select {
		case <-done:
			if i > 3 {
				return
			}
		default:
		}
	}
}
