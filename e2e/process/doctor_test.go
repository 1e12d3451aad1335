//go:build e2e

package process

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"iop/e2e/procs"
	"iop/packages/go/config"
)

// doctor's words, as its --json has them.
const (
	ok      = "ok"
	warning = "warning"
	fail    = "FAIL"
)

type finding struct{ Check, Level, Text, Remedy string }

type diagnosis struct {
	t        *testing.T
	Level    string
	Findings []finding
}

// diagnose runs a doctor, behind a prefix, and checks that its exit code says the same as its findings.
func diagnose(t *testing.T, dir string, prefix []string, args ...string) diagnosis {
	t.Helper()
	argv := append(append(slices.Clone(prefix), program(args[0]), "doctor"), append(args[1:], "--json")...)
	ctx, cancel := contextWithin(t, 2*limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	d := diagnosis{t: t}
	if json.Unmarshal(text, &d) != nil {
		t.Fatalf("%v ended (%v) without a report: %s\n%s", argv, err, text, stderr.String())
	}
	if want := map[string]int{ok: 0, warning: 1, fail: 2}[d.Level]; cmd.ProcessState.ExitCode() != want {
		t.Errorf("exit code %d with the level %s", cmd.ProcessState.ExitCode(), d.Level)
	}
	return d
}

// names fails the test unless the diagnosis has a finding of that check and level, with these words in what it says or
// in what is to be done.
func (d diagnosis) names(check, level string, words ...string) {
	d.t.Helper()
	i := slices.IndexFunc(d.Findings, func(f finding) bool { return f.Check == check && f.Level == level })
	if i < 0 {
		d.t.Fatalf("no %s of %s in\n%s", level, check, d)
	}
	f := d.Findings[i]
	for _, w := range words {
		if !strings.Contains(f.Text+" TO DO "+f.Remedy, w) {
			d.t.Errorf("%q isn't in %+v", w, f)
		}
	}
	if level == fail && f.Remedy == "" {
		d.t.Errorf("no remedy in %+v", f)
	}
}

// fails fails the test unless exactly these checks fail: one fault must not be told as several.
func (d diagnosis) fails(checks ...string) {
	d.t.Helper()
	var got []string
	for _, f := range d.Findings {
		if f.Level == fail {
			got = append(got, f.Check)
		}
	}
	if !slices.Equal(got, checks) {
		d.t.Errorf("%v fail, want %v:\n%s", got, checks, d)
	}
}

// String implements fmt.Stringer.
func (d diagnosis) String() string {
	var s strings.Builder
	for _, f := range d.Findings {
		fmt.Fprintf(&s, "%-8s %-24s %s | %s\n", f.Level, f.Check, f.Text, f.Remedy)
	}
	return s.String()
}

const offToken = "0123456789abcdef-of-a-disabled-node"

// hashOf is what stands in an edge's file for a token.
func hashOf(token string) string {
	sum := config.HashSecret(token)
	return hex.EncodeToString(sum[:])
}

// doctored is a site whose doctors are asked.
type doctored struct {
	*site
	edge string // the check of the edge's address
}

func newDoctored(t *testing.T, c procs.SiteConfig) *doctored {
	t.Helper()
	s := newSite(t, c)
	return &doctored{s, "edge " + s.Nodes}
}

// node asks the node's doctor with another file: the site's with something replaced, and lines at its end.
func (d *doctored) nodeWith(t *testing.T, old, new, more string, prefix ...string) diagnosis {
	t.Helper()
	text, err := os.ReadFile(d.Path("node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("no %q in %s", old, text)
	}
	write(t, d.Dir, "faulty.yaml", strings.Replace(string(text), old, new, 1)+more)
	return diagnose(t, d.Dir, prefix, "iop-node", "-c", "faulty.yaml")
}

// A doctor beside programs that run well: nothing fails, and nothing changes by it.
func TestDoctorBesideARunningSite(t *testing.T) {
	d := newDoctored(t, procs.SiteConfig{Adapters: "[{name: l, kind: loopback}]", Routes: "[{model: loopback}]", Node: fmt.Sprintf("admin: {listen: %q}", freePort(t))})
	generation, registered := d.node().Generation, d.Edge.Count("node registered")
	for range 3 {
		n := diagnose(t, d.Dir, nil, "iop-node", "-c", "node.yaml")
		n.fails()
		for _, check := range []string{"config", "tls", "node", "link " + d.Nodes, d.edge, "token", "clock", "provider l", "journal"} {
			n.names(check, ok)
		}
	}
	if now := d.node(); now.Generation != generation || now.State != "ready" || d.Edge.Count("node registered") != registered {
		t.Errorf("the node's connection was disturbed: %+v, %d registrations", now, d.Edge.Count("node registered"))
	}
	e := diagnose(t, d.Dir, nil, "iop-edge", "-c", "edge.yaml", "--request", "--deadline", limit.String())
	e.fails()
	for _, check := range []string{"config", "admin", "listen.nodes", "listen.http", "node " + procs.NodeID, "routes"} {
		e.names(check, ok)
	}
	e.names("request", ok, "loopback answered", "node "+procs.NodeID, "for a place", "first byte")
}

// freePort is an address that is free, and stays so.
func freePort(t *testing.T) string {
	t.Helper()
	addr, err := procs.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// One fault at a time beside an edge that runs: the node's doctor names it and what helps, and nothing else fails.
func TestDoctorOfANodeNamesFaults(t *testing.T) {
	closed := freePort(t)
	disabled := fmt.Sprintf("{id: off, enabled: false, token_hashes: [{sha256: %s}]}", hashOf(offToken))
	d := newDoctored(t, procs.SiteConfig{Adapters: "[{name: l, kind: loopback}]", MoreNodes: []string{disabled}})
	quoted := fmt.Sprintf("%q", d.Nodes)
	for name, f := range map[string]func(t *testing.T){
		"wrong token": func(t *testing.T) {
			write(t, d.Dir, "wrong.token", "0123456789abcdef-nobody-knows\n")
			n := d.nodeWith(t, "./node.token", "./wrong.token", "")
			n.names("token", fail, "doesn't know this node's token", "iop-edge token new")
			n.fails("token")
		},
		"disabled node": func(t *testing.T) {
			write(t, d.Dir, "off.token", offToken+"\n")
			n := d.nodeWith(t, "./node.token", "./off.token", "")
			n.names("token", fail, "disabled", "enabled: true")
			n.fails("token")
		},
		"closed edge port": func(t *testing.T) {
			n := d.nodeWith(t, quoted, fmt.Sprintf("%q", closed), "")
			n.names("edge "+closed, fail, "nothing listens there", "firewall")
			n.fails("edge " + closed)
		},
		"the edge's other port": func(t *testing.T) {
			n := d.nodeWith(t, quoted, fmt.Sprintf("%q", d.HTTP), "")
			n.names("edge "+d.HTTP, fail, "isn't the node port of an Edge", "listen.nodes")
			n.fails("edge " + d.HTTP)
		},
		"a name that isn't": func(t *testing.T) {
			n := d.nodeWith(t, quoted, `"no-such-host.invalid:7443"`, "")
			n.names("edge no-such-host.invalid:7443", fail, "no-such-host.invalid")
		},
	} {
		t.Run(name, f)
	}
}

// What is wrong with the node's machine, by the same rule.
func TestDoctorOfANodeNamesFaultsOfItsMachine(t *testing.T) {
	d := newDoctored(t, procs.SiteConfig{Adapters: "[{name: l, kind: loopback}]"})
	quoted := fmt.Sprintf("%q", d.Nodes)
	for name, f := range map[string]func(t *testing.T){
		"data_dir is a file": func(t *testing.T) {
			n := d.nodeWith(t, "./data", "./node.token", "")
			n.names("data_dir", fail, "is a file", "data_dir")
		},
		"damaged journal": func(t *testing.T) {
			if err := os.MkdirAll(d.Path("damaged"), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, d.Path("damaged"), "iop.db", strings.Repeat("no database ", 1000))
			n := d.nodeWith(t, "./data", "./damaged", "")
			n.names("journal", fail, "iop.db", "restart the node")
			n.fails("journal")
		},
		"low descriptor limit": func(t *testing.T) {
			n := d.nodeWith(t, quoted, quoted, "", "prlimit", "--nofile=100:100")
			n.names("files", warning, "100 files", "LimitNOFILE")
			n.fails()
		},
		"full disk": func(t *testing.T) {
			dir := tmpfs(t, d.Path("full"), "size=64m")
			if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 60<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			n := d.nodeWith(t, "./data", "./full", "")
			n.names("data_dir", fail, "is full", "make room")
			n.fails("data_dir")
		},
		"unwritable data_dir": func(t *testing.T) {
			tmpfs(t, d.Path("readonly"), "size=64m,ro")
			n := d.nodeWith(t, "./data", "./readonly/data", "")
			n.names("data_dir", fail, "read-only", "StateDirectory")
			n.fails("data_dir")
		},
	} {
		t.Run(name, f)
	}
}

// tmpfs mounts a file system for the test.
func tmpfs(t *testing.T, dir, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount the small file system that this needs")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("mount", "-t", "tmpfs", "-o", options, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("no file system can be mounted here: %v: %s", err, text)
	}
	t.Cleanup(func() {
		if text, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, text)
		}
	})
	return dir
}
