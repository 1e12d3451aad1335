package ca_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/apps/edge/internal/ca"
	"iop/packages/go/identity"
)

const day = 24 * time.Hour

func newCA(t *testing.T) (a *ca.Authority, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "ca")
	a, err := ca.Init(dir, "iop.example", 365*day)
	if err != nil {
		t.Fatal(err)
	}
	return a, dir
}

// issue makes an identity in a directory of its own, and opens it as a program does.
func issue(t *testing.T, dir string, id identity.ID, ttl time.Duration) (files identity.Files, err error) {
	t.Helper()
	a, err := ca.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "id")
	if _, err := a.Issue(dir, out, id, ttl); err != nil {
		return files, err
	}
	files = identity.Files{Cert: filepath.Join(out, "cert.pem"), Key: filepath.Join(out, "key.pem"), CA: filepath.Join(out, "ca.pem")}
	_, err = identity.Open(identity.Config{Files: files, TrustDomain: "iop.example"})
	return files, err
}

func TestIssue(t *testing.T) {
	_, dir := newCA(t)
	files, err := issue(t, dir, identity.NodeID("iop.example", "gpu-1"), day)
	if err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{files.Key: 0o600, filepath.Join(dir, "ca.pem"): 0o600, files.Cert: 0o644, dir: 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, %v; want %o", path, info.Mode(), err, mode)
		}
	}
	m, err := identity.Load(files, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf := m.Leaf()
	if m.ID() != "spiffe://iop.example/iop/node/gpu-1" || leaf.IsCA || len(leaf.DNSNames)+len(leaf.IPAddresses) != 0 {
		t.Errorf("%s, %+v", m.ID(), leaf)
	}
	if left := time.Until(leaf.NotAfter); left > day || left < day-time.Hour {
		t.Errorf("valid for %v", left)
	}
	text, err := ca.Inspect(files.Cert, time.Now())
	if err != nil || !strings.Contains(text, "spiffe://iop.example/iop/node/gpu-1") || !strings.Contains(text, identity.Serial(leaf)) {
		t.Errorf("%v\n%s", err, text)
	}
	// A certificate that would outlive its CA ends with it.
	files, err = issue(t, dir, "spiffe://iop.example/a", 10*365*day)
	if err != nil {
		t.Fatal(err)
	}
	m, _ = identity.Load(files, time.Now())
	if m.Leaf().NotAfter.After(m.CAs()[0].NotAfter) {
		t.Error("outlives its CA")
	}
}

// The CA signs for its trust domain, and can't be made to do otherwise.
func TestOnlyItsTrustDomain(t *testing.T) {
	_, dir := newCA(t)
	for _, id := range []identity.ID{"spiffe://other.example/iop/edge", "https://iop.example/a", "spiffe://iop.example/../a", "spiffe://iop.example"} {
		if _, err := issue(t, dir, id, day); err == nil {
			t.Errorf("a certificate for %s", id)
		}
	}
	if _, err := ca.Init(dir, "iop.example", day); err == nil || !strings.Contains(err.Error(), "holds a CA already") {
		t.Errorf("made anew over one that is there: %v", err)
	}
	for _, domain := range []string{"", "IOP", "a b", "td/x"} {
		if _, err := ca.Init(filepath.Join(t.TempDir(), "ca"), domain, day); err == nil {
			t.Errorf("a CA of %q", domain)
		}
	}
	if _, err := ca.Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "ca init") {
		t.Error(err)
	}
	if err := os.Chmod(filepath.Join(dir, "ca.pem"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Open(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
}

func request(t *testing.T, key crypto.Signer, uri string) []byte {
	t.Helper()
	template := &x509.CertificateRequest{DNSNames: []string{"anything"}}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{u}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestSignCSR(t *testing.T) {
	a, _ := newCA(t)
	const id = "spiffe://iop.example/iop/node/gpu-1"
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, uri := range []string{"", id} {
		text, cert, err := a.SignCSR(request(t, key, uri), id, day)
		if err != nil {
			t.Fatal(err)
		}
		if of, err := identity.Of(cert); err != nil || of != id || !key.PublicKey.Equal(cert.PublicKey) || len(cert.DNSNames) != 0 {
			t.Errorf("%s, %v: %+v", of, err, cert.DNSNames)
		}
		if !strings.HasPrefix(text, "-----BEGIN CERTIFICATE-----") {
			t.Error(text)
		}
	}
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := request(t, key, "")
	block, _ := pem.Decode(forged)
	block.Bytes[len(block.Bytes)-1] ^= 1
	for name, c := range map[string]struct {
		csr  []byte
		want string
	}{
		"another identity": {request(t, key, "spiffe://iop.example/iop/edge"), "another identity"},
		"weak key":         {request(t, weak, ""), "too weak"},
		"bad signature":    {pem.EncodeToMemory(block), "isn't signed"},
		"a certificate":    {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw}), "isn't a certificate request"},
		"nothing":          {nil, "isn't a certificate request"},
		"two":              {append(request(t, key, ""), request(t, key, "")...), "more than one"},
	} {
		if _, _, err := a.SignCSR(c.csr, id, day); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Skip("this Go makes no weak RSA keys")
	}
	if _, _, err := a.SignCSR(request(t, short, ""), id, day); err == nil {
		t.Error("an RSA key of 1024 bits")
	}
}

// TL-01: at each stage of a rotation the identities that are in use are trusted by the bundle of that stage.
func TestRotate(t *testing.T) {
	_, dir := newCA(t)
	const id = "spiffe://iop.example/iop/node/gpu-1"
	old, err := issue(t, dir, id, day)
	if err != nil {
		t.Fatal(err)
	}
	trusted := func(files identity.Files) bool {
		t.Helper()
		text, err := ca.Bundle(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(files.CA, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = identity.Load(files, time.Now())
		return err == nil
	}
	stage := func(stage, refused string) {
		t.Helper()
		switch err := ca.Rotate(dir, stage, 365*day); {
		case refused == "" && err != nil:
			t.Fatalf("%s: %v", stage, err)
		case refused != "" && (err == nil || !strings.Contains(err.Error(), refused)):
			t.Fatalf("%s: %v, want %s", stage, err, refused)
		}
	}
	stage("sometime", "isn't a stage")
	stage("switch", "begin with the stage add")
	stage("retire", "begin with the stage add")
	stage("add", "")
	stage("add", "") // again: the same
	stage("retire", "comes before retire")
	between, err := issue(t, dir, id, day) // still by the old one
	if err != nil || !trusted(old) || !trusted(between) {
		t.Fatal("after add", err)
	}
	stage("switch", "")
	stage("add", "retire the CA that it replaced first")
	renewed, err := issue(t, dir, id, day)
	if err != nil || !trusted(old) || !trusted(renewed) {
		t.Fatal("after switch", err)
	}
	stage("retire", "")
	if trusted(old) || trusted(between) || !trusted(renewed) {
		t.Error("after retire the old CA is trusted, or the new one isn't")
	}
	stage("add", "") // the next rotation
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 3 {
		t.Errorf("%v, %v", names, err)
	}
}

// A switch that was cut off after its first writes can be done again.
func TestSwitchAgain(t *testing.T) {
	a, dir := newCA(t)
	if err := ca.Rotate(dir, ca.StageAdd, day); err != nil {
		t.Fatal(err)
	}
	previous := filepath.Join(dir, "previous.pem")
	if err := os.WriteFile(previous, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, stage := range []string{ca.StageSwitch, ca.StageRetire} {
		if err := ca.Rotate(dir, stage, day); err != nil {
			t.Fatalf("%s: %v", stage, err)
		}
	}
	if now, err := ca.Open(dir); err != nil || now.Cert.Equal(a.Cert) {
		t.Errorf("the old CA signs: %v", err)
	}
}
