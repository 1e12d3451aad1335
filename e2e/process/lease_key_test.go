//go:build e2e

package process

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// leaseKeys are the signing keys in the edge's order.
func (k *keyed) leaseKeys(args ...string) (ids []string) {
	k.t.Helper()
	var a struct {
		LeaseKeys []struct{ ID string } `json:"lease_keys"`
	}
	if err := json.Unmarshal([]byte(k.ctl(append(append([]string{"lease-key"}, args...), "-o", "json")...)), &a); err != nil {
		k.t.Fatal(err)
	}
	for _, key := range a.LeaseKeys {
		ids = append(ids, key.ID)
	}
	return ids
}

// Security A6: the signing key is rotated under traffic without a failed request, also across a restart; one that is dropped signs
// nothing any more.
func TestSigningKeyIsRotated(t *testing.T) {
	key := newKey()
	k := newKeyed(t, key, answers(func() []string { return []string{key} }))
	k.pays()
	first := k.leaseKeys("list")
	if len(first) != 1 {
		t.Fatalf("%v", first)
	}
	end := make(chan struct{})
	failed := make(chan string, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-end:
				failed <- ""
				return
			default:
			}
			c := begin(t, k.edgeSide, k.HTTP, "beside the rotation", chat("keyed", modeJSON))
			<-c.done
			if c.status != 200 || c.err != nil {
				failed <- c.String()
				return
			}
		}
	}()
	second := k.leaseKeys("rotate")
	third := k.leaseKeys("rotate")
	close(end)
	if text := <-failed; text != "" {
		t.Errorf("beside the rotation: %s", text)
	}
	if len(second) != 2 || second[0] == first[0] || second[1] != first[0] || len(third) != 3 || third[1] != second[0] && third[2] != second[0] {
		t.Errorf("%v, then %v, then %v", first, second, third)
	}
	k.pays()
	if err := k.Edge.Stop(limit); err != nil {
		t.Fatal(err)
	}
	k.restartEdge()
	k.pays()
	if now := k.leaseKeys("list"); now[0] != third[0] {
		t.Errorf("after a restart %v, before %v", now, third)
	}
	if left := k.leaseKeys("drop", third[0]); left[0] == third[0] || strings.Contains(strings.Join(left, " "), third[0]) {
		t.Errorf("dropped, and still there: %v", left)
	}
	k.pays()
}

// TU-22, design §7: profiles, routes and slots change under traffic without a failed request: a node takes in a configuration before
// its edge knows that it has, and the edge has one before its nodes do.
func TestReloadUnderLeases(t *testing.T) {
	key := newKey()
	k := newKeyed(t, key, answers(func() []string { return []string{key} }))
	k.pays()
	end, failed := make(chan struct{}), make(chan string, 3)
	for range cap(failed) {
		go func() {
			for {
				select {
				case <-end:
					failed <- ""
					return
				default:
				}
				c := begin(t, k.edgeSide, k.HTTP, "beside the reloads", chat("keyed", modeJSON))
				if <-c.done; c.status != 200 || c.err != nil {
					failed <- c.String()
					return
				}
			}
		}()
	}
	file := k.Path("edge.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		next := strings.Replace(string(text), `paths: ["POST /v1/chat/completions"]`, fmt.Sprintf(`paths: ["POST /v1/chat/completions", "POST /v1/%d"]`, i), 1)
		if err := os.WriteFile(file, []byte(next), 0o600); err != nil {
			t.Fatal(err)
		}
		k.Edge.Signal(syscall.SIGHUP)
		said(t, k.Edge, "configuration reloaded", i+1)
	}
	close(end)
	for range cap(failed) {
		if text := <-failed; text != "" {
			t.Errorf("beside the reloads: %s", text)
		}
	}
	k.pays()
}
