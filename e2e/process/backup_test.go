//go:build e2e

package process

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/e2e/procs"
)

// remembered is what an edge is to know after a restore: the slot, its keys, the ledger, and the connection's number.
type remembered struct {
	slot       string // state and min_revision
	signing    string
	requests   uint64
	generation uint64
}

func (k *keyed) remembered() (r remembered) {
	k.t.Helper()
	var slots struct {
		Slots []struct {
			State    string `json:"state"`
			Revision uint64 `json:"revision"`
		} `json:"slots"`
	}
	if err := json.Unmarshal([]byte(k.ctl("slot", "list", "-o", "json")), &slots); err != nil || len(slots.Slots) != 1 {
		k.t.Fatalf("%+v, %v", slots, err)
	}
	var usage struct { // of two days, since one may end meanwhile
		Usage []struct {
			Requests uint64 `json:"requests"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(k.ctl("usage", "--days", "2", "-o", "json")), &usage); err != nil {
		k.t.Fatal(err)
	}
	for _, u := range usage.Usage {
		r.requests += u.Requests
	}
	r.slot, r.signing, r.generation = slots.Slots[0].State, k.leaseKeys("list")[0], k.node().Generation
	return r
}

// stopAndStart has the edge stopped, its files changed, and started again.
func (k *keyed) stopAndStart(change func()) {
	k.t.Helper()
	if err := k.Edge.Stop(limit); err != nil {
		k.t.Fatal(err)
	}
	change()
	k.restartEdge()
	k.awaitNode("ready", limit)
}

// copyDir puts a copy of one directory in the place of another.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	_ = filepath.WalkDir(to, func(path string, d os.DirEntry, err error) error { // CopyFS widens modes
		if err == nil && !d.IsDir() {
			err = os.Chmod(path, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
		return nil
	})
}

// Issue 9, protocol §7: state_dir is copied while the edge is stopped and put back after it was lost: slots' states, signing key and
// ledger are as they were, and connections get numbers above those before.
func TestBackupAndRestore(t *testing.T) {
	key := newKey()
	k := newKeyed(t, key, answers(func() []string { return []string{key} }))
	k.pays()
	k.leaseKeys("rotate")
	k.pays()
	k.ctl("slot", "disable", "main")
	backup := filepath.Join(t.TempDir(), "state")
	k.stopAndStart(func() { copyDir(t, k.Path("state"), backup) })
	before := k.remembered()
	if before.slot != "disabled" || before.requests != 2 {
		t.Fatalf("%+v", before)
	}
	k.stopAndStart(func() { copyDir(t, backup, k.Path("state")) })
	after := k.remembered()
	if after.slot != before.slot || after.signing != before.signing || after.requests != before.requests {
		t.Errorf("after the restore %+v, before %+v", after, before)
	}
	k.refused(503, "credential_unavailable")
	k.ctl("slot", "enable", "main")
	k.pays()

	// What was done after the copy is undone by it; a key that was revoked must be revoked again.
	k.ctl("slot", "revoke", "main")
	k.stopAndStart(func() { copyDir(t, backup, k.Path("state")) })
	if now := k.remembered(); now.slot != before.slot {
		t.Errorf("the slot is %s after a restore of a copy in which it was %s", now.slot, before.slot)
	}
}

// What an edge that has lost its state_dir does: a first start. A slot that was disabled is active, and what docs/operations.md says.
func TestRestoreWithoutState(t *testing.T) {
	key := newKey()
	k := newKeyed(t, key, answers(func() []string { return []string{key} }))
	k.pays()
	first := k.remembered()
	k.ctl("slot", "disable", "main")
	k.stopAndStart(func() {
		if err := os.RemoveAll(k.Path("state")); err != nil {
			t.Fatal(err)
		}
	})
	if now := k.remembered(); now.slot != "active" || now.signing == first.signing || now.requests != 0 {
		t.Errorf("without its state: %+v, before %+v", now, first)
	}
	k.pays()
}

// A copy of state_dir that is older than several starts: numbers of connections go back. Links were lost with the edge that had them,
// so that none can pass for another: the node that has seen higher ones registers, works, and its requests end as they should.
func TestRestoreOfAnOldGeneration(t *testing.T) {
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 4}]"})
	backup := filepath.Join(t.TempDir(), "state")
	restart := func(change func()) uint64 {
		t.Helper()
		if err := s.Edge.Stop(limit); err != nil {
			t.Fatal(err)
		}
		change()
		s.restartEdge()
		s.awaitNode("ready", limit)
		return s.node().Generation
	}
	first := restart(func() { copyDir(t, s.Path("state"), backup) })
	last := restart(func() {})
	if last <= first {
		t.Fatalf("generation %d after %d", last, first)
	}
	if again := restart(func() { copyDir(t, backup, s.Path("state")) }); again != first {
		t.Errorf("the old file gave %d, its first use %d: docs/operations.md says that numbers go back", again, first)
	}
	for range 3 {
		if c := s.ask(chat("loopback", "loopback: tokens=3 delay=1ms")); c.status != 200 || !strings.HasSuffix(c.text(), doneEvent) {
			t.Fatalf("%s", c)
		}
	}
	s.settled()
}
