//go:build e2e

package process

import (
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/e2e/procs"
)

// managed is a site in mode managed, whose certificates come from iop-edge ca.
type managed struct {
	*site
	t *testing.T
}

func newManaged(t *testing.T, nodeTTL string, c procs.SiteConfig) *managed {
	t.Helper()
	c.Managed = nodeTTL
	if c.Adapters == "" {
		c.Adapters = "[{name: loopback, kind: loopback, max_concurrency: 4}]"
	}
	return &managed{site: newSite(t, c), t: t}
}

func (m *managed) ca(args ...string) {
	m.t.Helper()
	if err := m.CA(m.t.Context(), args...); err != nil {
		m.t.Fatal(err)
	}
}

// renewNode gives the node another certificate of this life.
func (m *managed) renewNode(ttl string) {
	m.t.Helper()
	m.ca("issue", "node", "--id", procs.NodeID, "--ttl", ttl, "--out", m.Path("node-id"))
}

// bundle brings what is to be trusted to edge and node.
func (m *managed) bundle() {
	m.t.Helper()
	for _, dir := range []string{"edge-id", "node-id"} {
		m.ca("bundle", "--out", filepath.Join(m.Path(dir), "ca.pem"))
	}
}

// works asks for an answer, which must come.
func (m *managed) works() {
	m.t.Helper()
	if c := m.ask(chat("loopback", "loopback: delay=0s")); c.status != 200 || c.err != nil {
		m.t.Fatalf("%s", c)
	}
}

// serves waits until the edge has seen the node become ready so often.
func (m *managed) serves(nth int) {
	m.t.Helper()
	said(m.t, m.Edge, "node ready", nth)
	m.awaitNode("ready", limit)
	m.works()
}

// refusedAs waits until the edge has refused a node for the reason once more than before.
func (m *managed) refusedAs(before int, code string) {
	m.t.Helper()
	eventually(m.t, limit, "refused as "+code, func() bool { return m.refusals(code) > before })
}

func (m *managed) refusals(code string) (n int) {
	for line := range strings.Lines(m.Edge.Log()) {
		if strings.Contains(line, `"message":"node refused: `) && strings.Contains(line, `"code":"`+code+`"`) {
			n++
		}
	}
	return n
}

// traffic asks without a pause until stop is called, which reports what failed.
func (m *managed) traffic() (stop func()) {
	var all sync.WaitGroup
	end := make(chan struct{})
	var mu sync.Mutex
	n, failed := 0, []string(nil)
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				c := m.ask(chat("loopback", "loopback: tokens=4 delay=2ms"))
				mu.Lock()
				n++
				if c.status != 200 || c.err != nil {
					failed = append(failed, c.String())
				}
				mu.Unlock()
			}
		})
	}
	return func() {
		m.t.Helper()
		close(end)
		all.Wait()
		m.t.Logf("%d requests", n)
		if len(failed) > 0 || n == 0 {
			m.t.Errorf("%d of %d failed: %v", len(failed), n, failed)
		}
	}
}

// Fault 44, TL-04, TL-01, design §4: certificates are renewed under load and under a stream that runs on, and no caller
// sees it; the CA is replaced in its three stages, and what the old one signed is refused then.
func TestRotation(t *testing.T) {
	p := startProvider(t, nil, nil)
	m := newManaged(t, "1h", procs.SiteConfig{
		Adapters: "[{name: loopback, kind: loopback, max_concurrency: 4}, " + adapter("slow", p.url(), 2) + "]",
		Routes:   "[{model: loopback, adapter: loopback}, {model: slow, adapter: slow, target: m}]",
	})
	m.works()
	long := m.begin("a stream over all rotations", "slow", modeAtEnd)
	long.awaitText(t, "data:")
	stop := m.traffic()

	m.renewNode("1h")
	m.serves(2)
	if e := said(t, m.Edge, "node draining", 1); !strings.Contains(e.Str("text"), "taken over") {
		t.Errorf("%v", e)
	}
	old := m.copyOf("node-id")

	m.ca("rotate", "--stage", "add")
	m.bundle()
	said(t, m.Edge, "identity reloaded", 1)
	said(t, m.Node, "identity reloaded", 2)
	m.ca("rotate", "--stage", "switch")
	m.ca("issue", "edge", "--out", m.Path("edge-id"))
	said(t, m.Edge, "identity reloaded", 2)
	m.renewNode("1h")
	m.serves(3)
	stop()
	if long.over() {
		t.Fatalf("the stream was cut: %s", long)
	}
	get(t, nil, p.addr, "/test/release-end")
	long.await(t, limit).whole(t)
	said(t, m.Edge, "node fenced", 2) // both older connections: what the CA has signed that goes is in use no more
	m.ca("rotate", "--stage", "retire")
	m.bundle()
	said(t, m.Edge, "identity reloaded", 3)
	m.works()
	m.awaitFree(limit)
	for _, e := range m.Edge.Entries("node fenced") {
		if e.Str("code") != "superseded" {
			t.Errorf("%v", e)
		}
	}

	// A node that still has what the old CA signed.
	before := m.refusals("identity_mismatch")
	m.startOther(old, m.Path("node.token"))
	m.refusedAs(before, "identity_mismatch")
	if st := m.node().State; st != "ready" {
		t.Errorf("the node is %s", st)
	}
}

// copyOf keeps an identity as it is now.
func (m *managed) copyOf(dir string) string {
	m.t.Helper()
	to := m.t.TempDir()
	if err := os.CopyFS(to, os.DirFS(m.Path(dir))); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(to, "key.pem"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return to
}

// startOther starts a further node with this identity and token.
func (m *managed) startOther(id, token string) *procs.Process {
	m.t.Helper()
	dir := m.t.TempDir()
	write(m.t, dir, "node.yaml", fmt.Sprintf("edges: [%q]\ntoken: file:%s\ntls: {cert: %s/cert.pem, key: %s/key.pem, ca: %s/ca.pem, "+
		"edge_spiffe_id: 'spiffe://%s/iop/edge'}\n", m.Nodes, token, id, id, id, procs.TrustDomain))
	return start(m.t, "other node", nil, program("iop-node"), "serve", "-c", filepath.Join(dir, "node.yaml"))
}

// E25, fault 44, TL-03, TL-04: a node whose certificate isn't renewed loses its connection with it and gets no more work;
// one that is renewed in time doesn't, and one that is renewed too late comes back by itself.
func TestCertificatesExpire(t *testing.T) {
	const life = "12s" // a file is seen after a second at the latest, on a machine that has time
	m := newManaged(t, life, procs.SiteConfig{Routes: `[{model: "*", fail_fast: true}]`})
	m.works()
	for i := range 3 { // in time, each
		<-time.After(4 * time.Second)
		m.renewNode(life)
		m.serves(i + 2)
	}
	if n := len(m.fenced("identity_expired")); n != 0 {
		t.Fatalf("%d connections ended with a certificate that had been renewed", n)
	}
	eventually(t, limit, "the connection has ended with its certificate", func() bool { return len(m.fenced("identity_expired")) == 1 })
	if c := m.ask(chat("loopback", "hi")); c.status == 200 {
		t.Error("work went to an expired identity")
	}
	m.renewNode("1h")
	m.serves(5)
}

func (m *managed) fenced(code string) (found []procs.Entry) {
	for _, e := range m.Edge.Entries("node fenced") {
		if e.Str("code") == code {
			found = append(found, e)
		}
	}
	return found
}

// E25: a pair that is half replaced is ignored, and told of; the second half brings it into force.
func TestHalfWrittenPair(t *testing.T) {
	m := newManaged(t, "1h", procs.SiteConfig{})
	m.ca("issue", "node", "--id", procs.NodeID, "--out", m.Path("next"))
	move := func(name string) {
		t.Helper()
		if err := os.Rename(m.Path("next/"+name), m.Path("node-id/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	move("key.pem")
	if e := said(t, m.Node, "identity not reloaded: what is in force stays", 1); !strings.Contains(e.Str("error"), "key.pem") {
		t.Errorf("%v", e)
	}
	said(t, m.Edge, "node identity_reload_failed", 1) // an event of the node's
	m.works()
	move("cert.pem")
	m.serves(2)
}

// Security C2: a revoked serial number ends the connection at the reload and keeps the certificate out; a new one is let
// in though the node would wait for minutes.
func TestRevokedSerial(t *testing.T) {
	m := newManaged(t, "1h", procs.SiteConfig{})
	s := &settings{site: m.site, t: t}
	serial := found(t, `(?m)^serial +([0-9a-f]+)$`, run(t, m.Dir, "iop-edge", "ca", "inspect", m.Path("node-id/cert.pem")).stdout)
	s.rename(s.replace("{id: "+procs.NodeID+",", "{id: "+procs.NodeID+", revoked_serials: ["+serial+"],"))
	eventually(t, limit, "the connection is gone", func() bool { return len(m.fenced("identity_expired")) == 1 })
	m.refusedAs(0, "identity_mismatch")
	said(t, m.Node, "no link to the edge", 2)
	m.renewNode("1h")
	m.serves(2)
}

// TL-06, E27, E26: who isn't the node that its token says, isn't of this CA, or doesn't speak TLS, gets no further; a node
// doesn't talk to an edge that isn't its own.
func TestWrongIdentities(t *testing.T) {
	other := newMember("other", "[]")
	m := newManaged(t, "1h", procs.SiteConfig{MoreNodes: []string{other.record}})
	m.ca("issue", "node", "--id", "other", "--out", m.Path("other-id"))
	write(t, m.Dir, "other.token", other.token)

	m.startOther(m.Path("other-id"), m.Path("node.token")) // other's certificate, the node's token
	m.refusedAs(0, "identity_mismatch")
	m.startOther(m.Path("node-id"), m.Path("other.token")) // and the other way round
	m.refusedAs(1, "identity_mismatch")

	plain := newMember("plain", "[]")
	plain.start(m.site, "")
	m.refusedAs(0, "protocol")
	conn, err := net.Dial("tcp", m.Nodes)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	if answer, err := io.ReadAll(conn); os.IsTimeout(err) || strings.Contains(string(answer), "HTTP") {
		t.Errorf("plaintext was answered: %q, %v", answer, err)
	}

	// The edge with a node's certificate.
	m.Edge.Kill()
	text, err := os.ReadFile(m.Path("edge.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, m.Dir, "edge.yaml", strings.Replace(string(text), "./edge-id/", "./other-id/", 3))
	if err := m.StartEdge(background(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, limit, "the node refuses the edge", func() bool {
		for _, e := range m.Node.Entries("no link to the edge") {
			if e.Str("code") == "identity_mismatch" && strings.Contains(e.Str("reason"), "the edge isn't who it should be") {
				return true
			}
		}
		return false
	})
	if n := m.Edge.Count("node registered"); n != 0 {
		t.Errorf("%d registered with the wrong edge", n)
	}
}

// TL-08, E26: a program whose identity can't be used doesn't start, and says which file is wrong. Nothing listens.
func TestBrokenIdentityStopsTheStart(t *testing.T) {
	m := newManaged(t, "1h", procs.SiteConfig{})
	dir := m.copyOf("edge-id")
	text, err := os.ReadFile(m.Path("edge.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.Dir, "broken.yaml")
	write(t, m.Dir, "broken.yaml", strings.ReplaceAll(strings.ReplaceAll(string(text), "./edge-id/", dir+"/"), "./state", "./state2"))
	key, err := os.ReadFile(dir + "/key.pem")
	if err != nil {
		t.Fatal(err)
	}
	good := m.Path("edge-id")
	for name, c := range map[string]struct {
		file string
		data []byte
	}{
		"missing": {"ca.pem", nil}, "empty": {"ca.pem", []byte{}}, "wrong kind": {"ca.pem", key},
		"no PEM": {"cert.pem", []byte("hello")}, "bad DER": {"cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{1}})},
		"no key": {"key.pem", nil},
	} {
		path := filepath.Join(dir, c.file)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if c.data != nil {
			write(t, dir, c.file, string(c.data))
		}
		p := start(t, "edge with "+name, nil, program("iop-edge"), "serve", "-c", file)
		<-p.Done()
		if p.ExitCode() != 1 || !strings.Contains(p.Log(), path) || strings.Contains(p.Log(), "listening") {
			t.Errorf("%s: exit %d: %s", name, p.ExitCode(), p.Log())
		}
		whole, err := os.ReadFile(filepath.Join(good, c.file))
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, c.file, string(whole))
	}
}
