package diagnose_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/apps/node/internal/diagnose"
	"iop/packages/go/doctor"
	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

const secret = "0123456789abcdef-a-token"

// fakeEdge answers every registration on a port of its own; wrap makes the connections what they should be.
func fakeEdge(t *testing.T, wrap func(net.Conn) net.Conn, answer func(*pb.RegisterRequest) *pb.RegisterResponse) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			if c := wrap(conn); c != nil {
				req := new(pb.RegisterRequest)
				if transport.ReadMessage(c, transport.MaxRegisterRequest, req) == nil {
					_ = transport.WriteMessage(c, answer(req))
				}
			}
			conn.Close()
		}
	}()
	return ln.Addr().String()
}

func plain(c net.Conn) net.Conn { return c }

// accepts is an Edge's answer to a dry run.
func accepts(change ...func(*pb.RegisterResponse)) func(*pb.RegisterRequest) *pb.RegisterResponse {
	return func(req *pb.RegisterRequest) *pb.RegisterResponse {
		if !req.GetDryRun() || len(req.GetInstanceId()) != 0 || req.GetToken() != secret {
			return &pb.RegisterResponse{Reason: pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN, ReasonText: "this is no dry run"}
		}
		resp := &pb.RegisterResponse{Accepted: true, Protocol: 1, NodeId: "box", EdgeTimeMs: time.Now().UnixMilli(),
			Config: &pb.NodeConfigPayload{Projection: 1, Adapters: []*pb.AdapterConfig{{Name: "l", Kind: "loopback", MaxConcurrency: 4}}}}
		for _, c := range change {
			c(resp)
		}
		return resp
	}
}

func refuses(reason pb.RegisterReason) func(*pb.RegisterRequest) *pb.RegisterResponse {
	return func(*pb.RegisterRequest) *pb.RegisterResponse { return &pb.RegisterResponse{Reason: reason} }
}

// has makes the Edge's answer name an adapter.
func has(a *pb.AdapterConfig) func(*pb.RegisterResponse) {
	return func(r *pb.RegisterResponse) { r.Config.Adapters = []*pb.AdapterConfig{a} }
}

// configured writes a node's file for an Edge.
func configured(t *testing.T, edge, more string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"node.token": secret + "\n", "node.yaml": fmt.Sprintf("edges: [%q]\ntoken: file:./node.token\n%s", edge, more),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "node.yaml")
}

// examine runs all checks, and fails the test if one of them shows the token.
func examine(t *testing.T, opts diagnose.Options) []doctor.Finding {
	t.Helper()
	return examineWithin(t, opts, patience.Limit) // what answers must be found whatever else the machine does
}

// examineWithin is for where an Edge is silent.
func examineWithin(t *testing.T, opts diagnose.Options, limit time.Duration) []doctor.Finding {
	t.Helper()
	opts.Version = "v1"
	checks := diagnose.Checks(opts)
	for i := range checks {
		checks[i].Limit = patience.Limit
		if strings.HasPrefix(checks[i].Name, "edge ") {
			checks[i].Limit = limit
		}
	}
	all := doctor.Run(t.Context(), checks, func(f doctor.Finding) {
		if strings.Contains(f.Text+f.Remedy, secret) {
			t.Errorf("the token is shown: %+v", f)
		}
		if f.Level != doctor.OK && f.Level != doctor.Skipped && f.Remedy == "" {
			t.Errorf("no remedy: %+v", f)
		}
	})
	return all
}

// want fails the test unless a check found this, and nothing is worse anywhere else.
func want(t *testing.T, all []doctor.Finding, check string, level doctor.Level, words ...string) {
	t.Helper()
	i := slices.IndexFunc(all, func(f doctor.Finding) bool { return f.Check == check && f.Level == level })
	if i < 0 {
		t.Fatalf("no %s of %s in %+v", level, check, all)
	}
	for _, w := range words {
		if !strings.Contains(all[i].Text+" TO DO "+all[i].Remedy, w) {
			t.Errorf("%q isn't in %+v", w, all[i])
		}
	}
	for j, f := range all {
		if j != i && (f.Level == doctor.Fail || f.Level == doctor.Warning && level == doctor.Warning) && f.Check != "files" && f.Check != "memory" && f.Check != "data_dir" {
			t.Errorf("beside it: %+v", f)
		}
	}
}

func TestNothingIsWrong(t *testing.T) {
	edge := fakeEdge(t, plain, accepts())
	file := configured(t, edge, "")
	all := examine(t, diagnose.Options{File: file})
	for _, check := range []string{"config", "tls", "edge " + edge, "token", "clock", "provider l", "journal"} {
		want(t, all, check, doctor.OK)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(file), "data")); err == nil {
		t.Error("the data directory was made")
	}
}

// edgeFault is one fault, planted in the way of the registration.
type edgeFault struct {
	edge  func(*testing.T) string
	check string // "edge" gets the address
	level doctor.Level
	words []string
}

// closedPort is an address where nobody listens.
func closedPort(*testing.T) string { return "127.0.0.1:1" }

// answering is an Edge in mode dev.
func answering(answer func(*pb.RegisterRequest) *pb.RegisterResponse) func(*testing.T) string {
	return func(t *testing.T) string { return fakeEdge(t, plain, answer) }
}

// offset is an Edge whose clock is ahead.
func offset(by time.Duration) func(*testing.T) string {
	return answering(accepts(func(r *pb.RegisterResponse) { r.EdgeTimeMs = time.Now().Add(by).UnixMilli() }))
}

func webServer(t *testing.T) string {
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	return web.Listener.Addr().String()
}

func edgeFaults() map[string]edgeFault {
	return map[string]edgeFault{
		"closed port":  {closedPort, "edge", doctor.Fail, []string{"refuses connections", "start what should listen"}},
		"no such name": {func(*testing.T) string { return "no-such-host.invalid:7443" }, "edge", doctor.Fail, []string{"no-such-host.invalid", "edges"}},
		"not an edge":  {webServer, "edge", doctor.Fail, []string{"a web server answers", "isn't the node port of an Edge", "listen.nodes"}},
		"an edge in mode managed": {func(t *testing.T) string {
			ca := identitytest.NewCA(t, "ours")
			return fakeEdge(t, secured(t, ca.Edge(t), []*identitytest.CA{ca}), accepts())
		}, "edge", doctor.Fail, []string{"speaks TLS", "set tls"}},
		"closes at once": {func(t *testing.T) string { return fakeEdge(t, func(net.Conn) net.Conn { return nil }, nil) }, "edge", doctor.Fail, []string{"closed without an answer", "listen.nodes"}},
		"an edge that hangs": {func(t *testing.T) string {
			return fakeEdge(t, func(c net.Conn) net.Conn { _, _ = io.Copy(io.Discard, c); return nil }, nil)
		}, "edge", doctor.Fail, []string{"no answer in time", "hangs"}},
		"clock 10 min behind": {offset(10 * time.Minute), "clock", doctor.Fail, []string{"behind", "set the clock"}},
		"clock 10 min ahead":  {offset(-10 * time.Minute), "clock", doctor.Fail, []string{"ahead of"}},
		"clock 45 s off":      {offset(45 * time.Second), "clock", doctor.Warning, []string{"behind"}},
		"wrong token":         {answering(refuses(pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN)), "token", doctor.Fail, []string{"doesn't know this node's token", "iop-edge token new"}},
		"disabled":            {answering(refuses(pb.RegisterReason_REGISTER_REASON_NODE_DISABLED)), "token", doctor.Fail, []string{"disabled", "enabled: true"}},
		"another's":           {answering(refuses(pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH)), "token", doctor.Fail, []string{"certificate", "iop-edge ca inspect"}},
		"too old":             {answering(refuses(pb.RegisterReason_REGISTER_REASON_VERSION_UNSUPPORTED)), "token", doctor.Fail, []string{"no protocol version", "upgrade"}},
		"draining":            {answering(refuses(pb.RegisterReason_REGISTER_REASON_EDGE_DRAINING)), "token", doctor.Warning, []string{"shutting down"}},
		"an earlier version":  {answering(refuses(pb.RegisterReason_REGISTER_REASON_PROTOCOL)), "token", doctor.OK, []string{"nothing to refuse this node for"}},
		"provider down": {answering(accepts(has(&pb.AdapterConfig{Name: "l", Kind: "openai", BaseUrl: "http://127.0.0.1:1", MaxConcurrency: 1}))),
			"provider l", doctor.Fail, []string{"connection refused", "start the provider"}},
		"unknown kind": {answering(accepts(has(&pb.AdapterConfig{Name: "l", Kind: "new", MaxConcurrency: 1}))), "provider l", doctor.Fail, []string{"kind", "Edge's file"}},
	}
}

// One fault each, planted in the way of the registration.
func TestEdgeFaults(t *testing.T) {
	for name, c := range edgeFaults() {
		t.Run(name, func(t *testing.T) {
			edge := c.edge(t)
			check := strings.Replace(c.check, "edge", "edge "+edge, 1)
			opts := diagnose.Options{File: configured(t, edge, "")}
			var all []doctor.Finding
			switch name {
			case "not an edge":
				patience.Widen(t, 10*time.Second, func(limit time.Duration) (keptUp bool) { // of which half goes by without an answer
					began := time.Now()
					all = examineWithin(t, opts, limit)
					return time.Since(began) < limit
				})
			case "an edge that hangs":
				all = examineWithin(t, opts, time.Second)
			default:
				all = examine(t, opts)
			}
			want(t, all, check, c.level, c.words...)
		})
	}
}

// Every reason that the wire has is explained.
func TestEveryRefusalIsExplained(t *testing.T) {
	for n, name := range pb.RegisterReason_name {
		reason := pb.RegisterReason(n)
		if reason == pb.RegisterReason_REGISTER_REASON_UNSPECIFIED || reason == pb.RegisterReason_REGISTER_REASON_PROTOCOL {
			continue // never sent; what an Edge of an earlier version says
		}
		all := examine(t, diagnose.Options{File: configured(t, fakeEdge(t, plain, refuses(reason)), "")})
		i := slices.IndexFunc(all, func(f doctor.Finding) bool { return f.Check == "token" })
		if i < 0 || !strings.Contains(all[i].Text, "(") || strings.Contains(all[i].Remedy, "later version") {
			t.Errorf("%s isn't explained: %+v", name, all)
		}
	}
}

// certificateFault is what is wrong with certificates, on either side of the handshake.
type certificateFault struct {
	edge  identitytest.Leaf
	cas   []*identitytest.CA // that the Edge trusts
	write func(t *testing.T, dir string) identity.Files
	check string
	words []string
}

func certificateFaults(t *testing.T, ca, other *identitytest.CA) map[string]certificateFault {
	expired := func(c *identityCert) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	}
	good := ca.Node(t, "box")
	return map[string]certificateFault{
		"expired": {ca.Edge(t), []*identitytest.CA{ca}, func(t *testing.T, dir string) identity.Files {
			return identitytest.Write(t, dir, ca.Node(t, "box", expired), ca)
		}, "tls.cert", []string{"expired at", "iop-edge ca issue"}},
		"half-written pair": {ca.Edge(t), []*identitytest.CA{ca}, func(t *testing.T, dir string) identity.Files {
			f := identitytest.Write(t, dir, good, ca)
			overwrite(t, f.Key, ca.Node(t, "box").KeyPEM)
			return f
		}, "tls.key", []string{"isn't the private key of", "together"}},
		"half a file": {ca.Edge(t), []*identitytest.CA{ca}, func(t *testing.T, dir string) identity.Files {
			f := identitytest.Write(t, dir, good, ca)
			overwrite(t, f.Cert, good.CertPEM[:len(good.CertPEM)/2])
			return f
		}, "tls.cert", []string{"PEM"}},
		"no file": {ca.Edge(t), []*identitytest.CA{ca}, func(t *testing.T, dir string) identity.Files {
			f := identitytest.Write(t, dir, good, ca)
			f.CA += ".missing"
			return f
		}, "tls.ca", []string{"doesn't exist", "iop-edge ca init"}},
		"key open to all": {ca.Edge(t), []*identitytest.CA{ca}, func(t *testing.T, dir string) identity.Files {
			f := identitytest.Write(t, dir, good, ca)
			if err := os.Chmod(f.Key, 0o644); err != nil {
				t.Fatal(err)
			}
			return f
		}, "tls.key", []string{"0644", "mode 600"}},
		"wrong CA": {other.Edge(t), []*identitytest.CA{ca}, func(t *testing.T, dir string) identity.Files {
			return identitytest.Write(t, dir, good, ca)
		}, "tls EDGE", []string{"isn't who it should be", "edge_spiffe_id"}},
		"a node at the edge's place": {ca.Node(t, "fox"), []*identitytest.CA{ca}, func(t *testing.T, dir string) identity.Files {
			return identitytest.Write(t, dir, good, ca)
		}, "tls EDGE", []string{"node/fox", "edge_spiffe_id"}},
		"the edge trusts another": {ca.Edge(t), []*identitytest.CA{other}, func(t *testing.T, dir string) identity.Files {
			return identitytest.Write(t, dir, good, ca)
		}, "tls EDGE", []string{"doesn't accept this node's certificate", "the clock is right"}},
		"none": {ca.Edge(t), []*identitytest.CA{ca}, func(t *testing.T, dir string) identity.Files {
			return identitytest.Write(t, dir, good, ca)
		}, "", nil},
	}
}

func TestCertificateFaults(t *testing.T) {
	ca, other := identitytest.NewCA(t, "ours"), identitytest.NewCA(t, "theirs")
	for name, c := range certificateFaults(t, ca, other) {
		t.Run(name, func(t *testing.T) {
			edge := fakeEdge(t, secured(t, c.edge, c.cas), accepts())
			f := c.write(t, t.TempDir())
			all := examine(t, diagnose.Options{File: configured(t, edge, fmt.Sprintf("tls: {cert: %q, key: %q, ca: %q, edge_spiffe_id: %q}\n",
				f.Cert, f.Key, f.CA, identity.EdgeID(identitytest.TrustDomain)))})
			if c.check == "" {
				want(t, all, "token", doctor.OK, "as box")
				return
			}
			want(t, all, strings.Replace(c.check, "EDGE", edge, 1), doctor.Fail, c.words...)
		})
	}
}
