// Package monitoring tests what people watch a site with: that the alerts and the dashboard ask for what a running edge and
// node show, and that certificates are seen to end. It is a package of its own because its node must know the certificate
// of a provider of the test's, which a process learns once.
package monitoring

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"iop/apps/edge"
	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/config"
	"iop/packages/go/identity/identitytest"
	"iop/packages/go/tracing"
)

// roots is the file of the authorities that this process trusts. It is read when they are first needed.
const roots = "SSL_CERT_FILE"

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "iop-monitoring-")
	if err == nil {
		err = os.Setenv(roots, filepath.Join(dir, "roots.pem"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir) // it has nothing but a certificate
		os.Exit(code)
	}))
}

const aliceKey, limitedKey = "alice-key-0123456789", "limited-key-0123456789"

// site is an edge in mode managed and its node, in this process.
type site struct {
	edge *harness.Edge
	node *harness.Node
}

// setup is what a test wants otherwise than usual.
type setup struct {
	certificates func(*x509.Certificate) // alters all of them
	hosted       fakeprovider.Script     // of the provider that needs a key
	tracing      *tracing.Config
	https        bool // callers are shown the edge's certificate, too
}

// providerKey is the key that only the edge has.
const providerKey = "sk-of-the-provider-0123456789"

// startSite starts both. Alice may ask for "m", whose provider answers, and for "keyed", whose provider needs a key that
// the edge lends.
func startSite(t *testing.T, o setup) *site {
	t.Helper()
	if o.certificates == nil {
		o.certificates = func(*x509.Certificate) {}
	}
	script := fakeprovider.Routes(map[string]fakeprovider.Script{
		"GET /v1/models": fakeprovider.Models(),
		"POST /v1/chat/completions": fakeprovider.Answer(200, "application/json", `{"model":"m","choices":[{"index":0,"finish_reason":"stop",`+
			`"message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)})
	if o.hosted == nil {
		o.hosted = script
	}
	gpu, hosted := fakeprovider.New(t, script), fakeprovider.NewTLS(t, o.hosted)
	write(t, os.Getenv(roots), string(hosted.CertPEM()))
	dir, ca := t.TempDir(), identitytest.NewCA(t, "ca", o.certificates)
	for name, leaf := range map[string]identitytest.Leaf{"edge-id": ca.Edge(t, o.certificates), "node-id": ca.Node(t, "box", o.certificates)} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		identitytest.Write(t, filepath.Join(dir, name), leaf, ca)
	}
	write(t, filepath.Join(dir, "key"), providerKey)
	https := ""
	if o.https {
		https = ", http_tls: {cert: ./edge-id/cert.pem, key: ./edge-id/key.pem}"
	}
	adapters := fmt.Sprintf("[{name: gpu, kind: openai, base_url: %q, max_concurrency: 4}, {name: hosted, kind: openai, base_url: %q, max_concurrency: 2, targets: [m]}]",
		gpu.URL(), hosted.URL())
	s := &site{edge: harness.StartEdgeWith(t, dir, fmt.Sprintf(`mode: managed
tls: {cert: ./edge-id/cert.pem, key: ./edge-id/key.pem, ca: ./edge-id/ca.pem, trust_domain: %s}
listen: {nodes: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0"%s}
state_dir: ./state
nodes: [%s]
routes: [{model: m, adapter: gpu}, {model: keyed, adapter: hosted, target: m, slot: main}]
principals: [{id: alice, key_hashes: [%x]}, {id: limited, key_hashes: [%x], limits: {requests_per_minute: 1}}]
profiles: [{id: p, origin: %q, paths: ["POST /v1/chat/completions"]}]
slots: [{id: main, source: "file:./key", profile: p, nodes: [box], refresh: 1h, stale_max: 1h}]
`, identitytest.TrustDomain, https, harness.Record("box", adapters), config.HashSecret(aliceKey), config.HashSecret(limitedKey), hosted.URL()), edge.Options{Tracing: o.tracing})}
	s.node = harness.StartNodeWith(t, fmt.Sprintf(`edges: [%q]
token: file:./node.token
tls: {cert: %[2]s/cert.pem, key: %[2]s/key.pem, ca: %[2]s/ca.pem, edge_spiffe_id: 'spiffe://%[3]s/iop/edge'}
data_dir: ./data
admin: {listen: "127.0.0.1:0"}
timers: {probe_interval: 1h}
`, s.edge.Addr.Nodes.String(), filepath.Join(dir, "node-id"), identitytest.TrustDomain), harness.TokenOf("box"), o.tracing)
	s.edge.AwaitReady("box")
	return s
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ending is a certificate that was made a year ago and ends then.
func ending(in time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-365*24*time.Hour), time.Now().Add(in)
	}
}
