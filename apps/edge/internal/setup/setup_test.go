package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/packages/go/config"
)

func options(t *testing.T) Options {
	return Options{Dir: filepath.Join(t.TempDir(), "site"), TrustDomain: "iop.test", Node: "gpu-1", Caller: "me",
		Edge: "edge:7443", Nodes: "0.0.0.0:7443", HTTP: "0.0.0.0:8080", TTL: 24 * time.Hour, Configs: true}
}

// made runs Make and returns what it made, without the directory and without the order.
func made(t *testing.T, o Options, now time.Time) string {
	t.Helper()
	paths, err := Make(o, now)
	if err != nil {
		t.Fatal(err)
	}
	for i := range paths {
		paths[i] = strings.TrimPrefix(paths[i], o.Dir+"/")
	}
	return strings.Join(paths, " ")
}

func TestASiteLoadsAndStaysAsItIs(t *testing.T) {
	o, now := options(t), time.Now()
	if got := made(t, o, now); got != "ca edge/cert.pem gpu-1/cert.pem gpu-1/node.token callers/me.key edge/edge.yaml gpu-1/node.yaml" {
		t.Errorf("made %s", got)
	}
	edge, err := config.LoadEdge(filepath.Join(o.Dir, "edge", "edge.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !edge.Managed() || edge.Nodes[0].ID != "gpu-1" || edge.Principals[0].ID != "me" || edge.Listen.HTTP != "0.0.0.0:8080" {
		t.Errorf("%+v", edge)
	}
	node, err := config.LoadNode(filepath.Join(o.Dir, "gpu-1", "node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if node.TLS.EdgeSPIFFEID != "spiffe://iop.test/iop/edge" || node.Edges[0] != "edge:7443" || node.PinnedCA == "" {
		t.Errorf("%+v", node)
	}
	before := contents(t, o.Dir)
	if got := made(t, o, now.Add(11*time.Hour)); got != "" {
		t.Errorf("made %s again", got)
	}
	if contents(t, o.Dir) != before {
		t.Error("a second run changed something")
	}
}

// contents are all files with their times, so that a file that is written again is another.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var s strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		s.WriteString(path + info.ModTime().String() + info.Mode().String() + string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.String()
}

func TestWhatIsMissingOrOldIsMadeAnew(t *testing.T) {
	o, now := options(t), time.Now()
	made(t, o, now)
	if got := made(t, o, now.Add(13*time.Hour)); got != "edge/cert.pem gpu-1/cert.pem" {
		t.Errorf("in the second half of their life: %s", got)
	}
	for _, name := range []string{"edge/key.pem", "gpu-1/ca.pem", "edge/me.key.sha256", "gpu-1/node.yaml"} {
		if err := os.Remove(filepath.Join(o.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := made(t, o, now); got != "edge/cert.pem gpu-1/cert.pem gpu-1/node.yaml" {
		t.Errorf("after a loss: %s", got)
	}
	if _, err := config.LoadEdge(filepath.Join(o.Dir, "edge", "edge.yaml")); err != nil {
		t.Error(err)
	}
	o.Configs, o.Node = false, "gpu-2"
	if got := made(t, o, now); got != "gpu-2/cert.pem gpu-2/node.token" {
		t.Errorf("a second node: %s", got)
	}
}

// A CA that is kept elsewhere isn't replaced by another one, which nobody would trust.
func TestALostCAIsntReplaced(t *testing.T) {
	o, now := options(t), time.Now()
	made(t, o, now)
	if err := os.RemoveAll(filepath.Join(o.Dir, "ca")); err != nil {
		t.Fatal(err)
	}
	if paths, err := Make(o, now); err == nil || !strings.Contains(err.Error(), "bring ca.pem back") || len(paths) > 0 {
		t.Error(paths, err)
	}
}
