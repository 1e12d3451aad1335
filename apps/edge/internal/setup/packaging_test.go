package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/packages/go/config"
)

// The configurations of the packages and of docker-compose.yaml load, and fit what setup makes: they are what people
// begin with.
func TestPackagedConfigurationsFitASite(t *testing.T) {
	const packaging = "../../../../packaging/"
	for _, c := range []struct{ from, node, prefix string }{
		{packaging + "files/etc/iop/", "gpu-1", "./"},
		{packaging + "compose/", "local", "/iop/"},
	} {
		o := options(t)
		o.Node, o.TrustDomain, o.Configs = c.node, "iop.internal", false
		made(t, o, time.Now())
		if c.prefix == "./" { // on one machine: what the unit's LoadCredential= does, and the directory of the node
			t.Setenv("CREDENTIALS_DIRECTORY", filepath.Join(o.Dir, "credentials"))
			link(t, filepath.Join(o.Dir, c.node), filepath.Join(o.Dir, "node"))
			if err := os.Mkdir(filepath.Join(o.Dir, "credentials"), 0o700); err != nil {
				t.Fatal(err)
			}
			link(t, filepath.Join(o.Dir, c.node, "node.token"), filepath.Join(o.Dir, "credentials", "token"))
		}
		for _, name := range []string{"edge.yaml", "node.yaml"} {
			text, err := os.ReadFile(c.from + name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(o.Dir, name), []byte(strings.ReplaceAll(string(text), c.prefix, o.Dir+"/")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		edge, err := config.LoadEdge(filepath.Join(o.Dir, "edge.yaml"))
		if err != nil {
			t.Error(err)
		} else if edge.Nodes[0].ID != c.node || !edge.Managed() || len(edge.Principals) != 1 {
			t.Errorf("%s: %+v", c.from, edge)
		}
		if _, err := config.LoadNode(filepath.Join(o.Dir, "node.yaml")); err != nil {
			t.Error(err)
		}
	}
}

func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}
