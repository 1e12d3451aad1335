package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"iop/e2e/procs"
)

// leased compares two routes of one managed site that lead to the same provider over TLS: one lends the node a key for
// each request, one doesn't. The difference is what issuing, verifying, opening and writing a lease cost, and the scan
// of the answer for the key.
func (b *bench) leased(ctx context.Context, r *report, slice time.Duration, rounds int) error {
	dir, err := os.MkdirTemp("", "iop-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cert := filepath.Join(dir, "provider.pem")
	provider, listening, err := startAndWait(ctx, "provider-tls", self, "-role", "provider-tls", "-target", cert)
	if err != nil {
		return err
	}
	defer provider.Kill()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("sk-bench-"+rand.Text()+rand.Text()), 0o600); err != nil {
		return err
	}
	origin := "https://" + listening.Str("http")
	site, err := procs.StartSite(ctx, procs.SiteConfig{
		Bin: b.bin, Managed: "1h", NodePrefix: []string{"env", "SSL_CERT_FILE=" + cert},
		Adapters: fmt.Sprintf(`[{name: provider, kind: openai, base_url: %q, max_concurrency: 2000}]`, origin),
		Routes: "[{model: bench, adapter: provider, target: bench, queue: {depth: 2000, wait: 30s}}, " +
			"{model: keyed, adapter: provider, target: bench, slot: key, queue: {depth: 2000, wait: 30s}}]",
		Edge: fmt.Sprintf("profiles: [{id: p, origin: %q, paths: [POST /v1/chat/completions]}]\nslots: [{id: key, source: \"file:%s\", profile: p, nodes: [%s]}]",
			origin, key, procs.NodeID),
	})
	if err != nil {
		return err
	}
	defer site.Stop()
	return b.leaseFigures(ctx, r, site.HTTP, slice, rounds)
}

func (b *bench) leaseFigures(ctx context.Context, r *report, addr string, slice time.Duration, rounds int) error {
	routes := []string{"bench", "keyed"}
	ask := func(route, what string) []byte {
		return bytes.Replace(request(what), []byte(`"bench"`), fmt.Appendf(nil, "%q", route), 1)
	}
	both := func(what string, concurrency int) [2]*result {
		results := [2]*result{{}, {}}
		for _, route := range routes {
			load(ctx, addr, ask(route, what), false, concurrency, 200*time.Millisecond) // warm up
		}
		for range rounds {
			for i, route := range routes {
				results[i].add(load(ctx, addr, ask(route, what), false, concurrency, slice))
			}
		}
		return results
	}
	r.head("A key lent for each request, provider over TLS: requests that don't stream", "concurrent", "key", "requests/s", "p50 µs", "p99 µs", "errors")
	for _, concurrency := range []int{1, 16} {
		results := both("json", concurrency)
		for i, name := range []string{"none", "lent"} {
			r.row(fmt.Sprint(concurrency), name, f0(results[i].rps()), us(results[i].p(0.5)), us(results[i].p(0.99)), fmt.Sprint(results[i].errors))
		}
		if concurrency == 1 {
			r.goal("a lease adds at p50, 1 concurrent, ms", (results[1].p(0.5)-results[0].p(0.5)).Seconds()*1000, 0.6, false)
			r.goal("a lease adds at p99, 1 concurrent, ms", (results[1].p(0.99)-results[0].p(0.99)).Seconds()*1000, 2, false)
		}
	}
	const size = 8 << 20
	results := both(fmt.Sprintf("body %d", size), 1)
	r.head("The same: bodies of 8 MiB", "key", "MB/s", "errors")
	for i, name := range []string{"none", "lent"} {
		r.row(name, f0(results[i].rps()*size/1e6), fmt.Sprint(results[i].errors))
	}
	r.goal("bodies of 8 MiB with a lease against without", results[1].rps()/results[0].rps(), 0.95, true)
	return nil
}

// selfSigned makes a certificate for loopback and writes it to a file.
func selfSigned(path string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, os.WriteFile(path, text, 0o600)
}
