//go:build e2e

package process

import (
	"os"
	"strings"
	"testing"

	"iop/e2e/procs"
)

// previous is the directory of the previous release's programs.
func previous(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("IOP_PREVIOUS")
	if dir == "" {
		t.Skip("skipped: IOP_PREVIOUS isn't set; make previous builds the previous release where the history has it")
	}
	if _, err := os.Stat(dir + "/iop-edge"); err != nil {
		t.Skipf("skipped: there is no previous release in %s: this clone's history doesn't reach so far back", dir)
	}
	return dir
}

// Protocol §4.1, issue 9: an edge works with nodes of the previous release and the other way round, in both modes: tunnels, runs,
// background runs, cancels, drains.
func TestPreviousRelease(t *testing.T) {
	old := previous(t)
	for name, c := range map[string]procs.SiteConfig{
		"new edge, old node":          {Bin: bin, NodeBin: old},
		"old edge, new node":          {Bin: old, NodeBin: bin},
		"new edge, old node, managed": {Bin: bin, NodeBin: old, Managed: "1h"},
		"old edge, new node, managed": {Bin: old, NodeBin: bin, Managed: "1h"},
	} {
		t.Run(name, func(t *testing.T) {
			c.Adapters = "[{name: loopback, kind: loopback, max_concurrency: 4}]"
			c.Node = "admin: {listen: '127.0.0.1:0'}"
			s := newSite(t, c)
			if got := s.ask(chat("loopback", "loopback: tokens=5 delay=1ms")); got.status != 200 || !strings.HasSuffix(got.text(), doneEvent) {
				t.Errorf("a stream: %s", got)
			}
			if status, text := s.runs("POST", "/iop/v1/runs", `{"adapter":"loopback","target":"loopback","messages":[{"role":"user","content":"hi"}],"stream":false}`); status != 200 {
				t.Errorf("a run: %d %s", status, text)
			}
			status, text := s.runs("POST", "/iop/v1/runs", `{"adapter":"loopback","target":"loopback","background":true,"run_id":"b1","messages":[{"role":"user","content":"loopback: tokens=500 delay=50ms"}]}`)
			if status/100 != 2 {
				t.Errorf("a background run: %d %s", status, text)
			}
			if status, text := s.runs("POST", "/iop/v1/runs/b1/cancel", ""); status/100 != 2 {
				t.Errorf("its cancel: %d %s", status, text)
			}
			running := s.ask0("loopback: tokens=200 delay=5ms")
			running.awaitText(t, "data:")
			running.leave(false)
			s.settled()
			if got := s.node(); got.ID != procs.NodeID || got.State != "ready" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A node of the previous release can't be lent a key: its requests are refused, and the provider isn't asked.
func TestPreviousNodeGetsNoKey(t *testing.T) {
	old := previous(t)
	key := newKey()
	k := newKeyedAs(t, key, answers(func() []string { return []string{key} }), func(c *procs.SiteConfig) { c.NodeBin = old })
	k.refused(503, "credential_unavailable")
}
