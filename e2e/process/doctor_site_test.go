//go:build e2e

package process

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"iop/e2e/procs"
)

// Providers that are down, or lack what they are to serve: both doctors say so, and so does a request.
func TestDoctorNamesFaultsOfProviders(t *testing.T) {
	down := freePort(t)
	d := newDoctored(t, procs.SiteConfig{
		Adapters: fmt.Sprintf(`[{name: l, kind: loopback, targets: [loopback]}, {name: down, kind: openai, base_url: "http://%s"}]`, down),
		Routes:   "[{model: there, target: loopback}, {model: gone, adapter: down, fail_fast: true}]",
	})
	n := diagnose(t, d.Dir, nil, "iop-node", "-c", "node.yaml")
	n.names("provider down", fail, "connection refused", "start the provider")
	n.fails("provider down")
	e := diagnose(t, d.Dir, nil, "iop-edge", "-c", "edge.yaml", "--request=gone", "--deadline", limit.String())
	e.names("adapter box/down", fail, "connection refused", "iop-node doctor")
	e.names("route gone", fail, "nobody can serve it now", "ctl why gone")
	e.names("request", fail, "gone ended as no_node", "see the checks of nodes and routes above")
	e.fails("adapter box/down", "route gone", "request")

	// A provider by itself, before any Edge knows of it.
	provider := startRole(t, roleProvider, nil)
	addr := said(t, provider, "provider listens", 1).Str("addr")
	p := diagnose(t, d.Dir, nil, "iop-node", "--provider", "http://"+addr, "--kind", "openai", "--target", "no-such-model")
	p.names("provider http://"+addr, fail, "lacks no-such-model")
	p.fails("provider http://" + addr)
}

// What the edge's doctor says of nodes that aren't there, of ports that are taken, and of too few files.
func TestDoctorOfAnEdgeNamesFaults(t *testing.T) {
	disabled := fmt.Sprintf("{id: off, enabled: false, token_hashes: [{sha256: %s}]}", hashOf(offToken))
	d := newDoctored(t, procs.SiteConfig{Adapters: "[{name: l, kind: loopback}]", MoreNodes: []string{disabled}, EdgePrefix: []string{"prlimit", "--nofile=400:400"}})
	if d.Edge.Count("fewer files may be open than the configuration needs; raise the limit (ulimit -n, systemd: LimitNOFILE=)") != 1 {
		t.Errorf("the edge started without a word about its 400 files:\n%s", tail(d.Edge.Log()))
	}
	e := diagnose(t, d.Dir, nil, "iop-edge", "-c", "edge.yaml")
	e.names("files", warning, "the running Edge may have 400 files open", "LimitNOFILE")
	e.names("node off", warning, "disabled", "enabled: true")
	e.fails()

	if err := d.Node.Stop(limit); err != nil {
		t.Fatal(err)
	}
	eventually(t, limit, "the edge misses its node", func() bool { return d.site.node().State == "offline" })
	e = diagnose(t, d.Dir, nil, "iop-edge", "-c", "edge.yaml")
	e.names("node box", fail, "its connection ended", "iop-node doctor")
	e.fails("node box")

	// A second file for the same port: its edge couldn't start.
	write(t, d.Dir, "second.yaml", fmt.Sprintf("listen: {nodes: %q, http: %q, admin: %q}\nstate_dir: ./second\n", d.Nodes, freePort(t), freePort(t)))
	e = diagnose(t, d.Dir, nil, "iop-edge", "-c", "second.yaml")
	e.names("listen.nodes", fail, "is taken", "ss -ltnp")
	e.fails("listen.nodes")

	// An admin listener for strangers needs keys.
	write(t, d.Dir, "open.yaml", "listen: {admin: '0.0.0.0:8081'}\n")
	e = diagnose(t, d.Dir, nil, "iop-edge", "-c", "open.yaml")
	e.names("config", fail, "admin_key_hashes")
	e.fails("config")
}

// Certificates of others, by another CA, of half a pair, and ones that have expired, at a real edge in mode managed.
func TestDoctorNamesFaultsOfCertificates(t *testing.T) {
	d := newDoctored(t, procs.SiteConfig{Adapters: "[{name: l, kind: loopback}]", Managed: "1h"})
	diagnose(t, d.Dir, nil, "iop-node", "-c", "node.yaml").fails()
	diagnose(t, d.Dir, nil, "iop-edge", "-c", "edge.yaml").fails()
	secured := "tls " + d.Nodes

	ca := func(dir string, args ...string) {
		t.Helper()
		args = append([]string{"ca"}, append(args, "--dir", d.Path(dir))...)
		if text, err := exec.Command(program("iop-edge"), args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, text)
		}
	}
	ca("ca", "issue", "node", "--id", "fox", "--out", d.Path("fox-id"))
	n := d.nodeWith(t, "cert: ./node-id/cert.pem, key: ./node-id/key.pem", "cert: ./fox-id/cert.pem, key: ./fox-id/key.pem", "")
	n.names("token", fail, "aren't of the same node", "iop-edge ca inspect")
	n.fails("token")

	n = d.nodeWith(t, "key: ./node-id/key.pem", "key: ./fox-id/key.pem", "")
	n.names("tls.key", fail, "isn't the private key of", "together")
	n.fails("tls.key")

	ca("other-ca", "init", "--trust-domain", procs.TrustDomain)
	ca("other-ca", "issue", "node", "--id", procs.NodeID, "--out", d.Path("other-id"))
	n = d.nodeWith(t, "cert: ./node-id/cert.pem, key: ./node-id/key.pem, ca: ./node-id/ca.pem", "cert: ./other-id/cert.pem, key: ./other-id/key.pem, ca: ./other-id/ca.pem", "")
	n.names(secured, fail, "isn't who it should be", "edge_spiffe_id and ca")
	n.fails(secured)

	text, err := os.ReadFile(d.Path("node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	plain, _, _ := strings.Cut(string(text), "tls:")
	write(t, d.Dir, "plain.yaml", plain)
	n = diagnose(t, d.Dir, nil, "iop-node", "-c", "plain.yaml")
	n.names(d.edge, fail, "mode managed", "set tls")
	n.fails(d.edge)

	ca("ca", "issue", "node", "--id", "ends", "--ttl", "1s", "--out", d.Path("ends-id"))
	var last diagnosis
	eventually(t, limit, "the certificate has ended", func() bool {
		last = d.nodeWith(t, "cert: ./node-id/cert.pem, key: ./node-id/key.pem", "cert: ./ends-id/cert.pem, key: ./ends-id/key.pem", "")
		return last.Level == fail && strings.Contains(last.String(), "expired at")
	})
	last.names("tls.cert", fail, "expired at", "iop-edge ca issue", time.Now().UTC().Format("2006-01-02"))
	last.fails("tls.cert")
}

// A slot whose source is gone, beside an edge that still has its key: the next start would fail.
func TestDoctorNamesFaultsOfSlots(t *testing.T) {
	const key = "sk-doctor-0123456789abcdef"
	k := newKeyed(t, key, answers(func() []string { return []string{key} }))
	e := diagnose(t, k.Dir, nil, "iop-edge", "-c", "edge.yaml")
	e.fails()
	e.names("slot main", ok, fmt.Sprintf("%d bytes", len(key)))
	if err := os.Remove(k.source); err != nil {
		t.Fatal(err)
	}
	e = diagnose(t, k.Dir, nil, "iop-edge", "-c", "edge.yaml")
	e.names("slot main", fail, "doesn't exist", "source")
	e.fails("slot main")
	if strings.Contains(e.String(), key) {
		t.Error("the key is shown")
	}
}
