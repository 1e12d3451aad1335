package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/identity"
)

// caRun runs the program with these arguments.
func caRun(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := rootCommand()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(args)
	err := root.Execute()
	return out.String(), err
}

// The way of docs/managed-mode.md: a CA, an edge, a node whose key stays at home, and a token that names the CA.
func TestCACommands(t *testing.T) {
	t.Chdir(t.TempDir())
	must := func(args ...string) string {
		t.Helper()
		out, err := caRun(t, args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	must("ca", "init", "--trust-domain", "iop.example")
	must("ca", "issue", "edge", "--out", "edge")
	must("ca", "bundle", "--out", "gpu-1/ca.pem")

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"gpu-1/key.pem": {Type: "PRIVATE KEY", Bytes: der}, "node.csr": {Type: "CERTIFICATE REQUEST", Bytes: csr}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must("ca", "sign-csr", "node", "--id", "gpu-1", "--csr", "node.csr", "--out", "gpu-1/cert.pem", "--ttl", "720h")
	m, err := identity.Load(identity.Files{Cert: "gpu-1/cert.pem", Key: "gpu-1/key.pem", CA: "gpu-1/ca.pem"}, time.Now())
	if err != nil || m.ID() != "spiffe://iop.example/iop/node/gpu-1" {
		t.Fatal(m, err)
	}
	out := must("ca", "inspect", "edge/cert.pem", "ca/bundle.pem")
	sum := sha256.Sum256(m.CAs()[0].Raw)
	for _, want := range []string{"spiffe_id    spiffe://iop.example/iop/edge", "trust domain iop.example", fmt.Sprintf("%x", sum)} {
		if !strings.Contains(out, want) {
			t.Errorf("inspect lacks %q:\n%s", want, out)
		}
	}
	must("token", "new", "gpu-1", "--ca", "ca/bundle.pem", "--token-file", "node.token", "--hash-file", "gpu-1.sha256")
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	text := "edges: ['e:1']\ntoken: file:node.token\ntls: {cert: gpu-1/cert.pem, key: gpu-1/key.pem, ca: gpu-1/ca.pem, edge_spiffe_id: 'spiffe://iop.example/iop/edge'}\n"
	if err := os.WriteFile("node.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := config.LoadNode(filepath.Join(dir, "node.yaml")); err != nil || n.PinnedCA != fmt.Sprintf("%x", sum) {
		t.Errorf("%+v, %v", n, err)
	}
	for _, stage := range []string{"add", "switch", "retire"} {
		must("ca", "rotate", "--stage", stage)
	}
	for name, args := range map[string][]string{
		"neither edge nor node":  {"ca", "issue", "gpu-1", "--out", "x"},
		"a node without an id":   {"ca", "issue", "node", "--out", "x"},
		"a bad id":               {"ca", "issue", "node", "--id", "a/b", "--out", "x"},
		"an id that is no path":  {"ca", "issue", "node", "--id", "..", "--out", "x"},
		"an edge with an id":     {"ca", "issue", "edge", "--id", "a", "--out", "x"},
		"another trust domain":   {"ca", "issue", "node", "--spiffe-id", "spiffe://other/a", "--out", "x"},
		"no life":                {"ca", "issue", "edge", "--ttl", "0s", "--out", "x"},
		"a CA that is there":     {"ca", "init", "--trust-domain", "iop.example"},
		"no such CA":             {"ca", "bundle", "--dir", "nowhere"},
		"a pin that isn't a CA":  {"token", "new", "a", "--ca", "edge/cert.pem"},
		"inspect without a file": {"ca", "inspect"},
		"inspect of a key":       {"ca", "inspect", "edge/key.pem"},
		"no stage":               {"ca", "rotate", "--stage", "now"},
	} {
		if out, err := caRun(t, args...); err == nil {
			t.Errorf("%s: %s", name, out)
		} else if strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: quotes a file: %v", name, err)
		}
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("a refused command wrote something")
	}
}
