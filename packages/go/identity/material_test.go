package identity_test

import (
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
)

func TestIDs(t *testing.T) {
	for _, good := range []string{"spiffe://td/a", "spiffe://iop.example/ns/x/sa/Y_z-1.2", "spiffe://1-2_3/..."} {
		if id, err := identity.ParseID(good); err != nil || string(id) != good {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "td/a", "https://td/a", "SPIFFE://td/a", "spiffe://td", "spiffe://td/", "spiffe:///a", "spiffe://td/a/",
		"spiffe://td//a", "spiffe://td/./a", "spiffe://td/a/..", "spiffe://Td/a", "spiffe://td:1/a", "spiffe://u@td/a", "spiffe://td/a?b",
		"spiffe://td/a#", "spiffe://td/a%20b", "spiffe://td/ä", "spiffe://td/a b", "spiffe://td/" + strings.Repeat("a", 2048),
		"spiffe://" + strings.Repeat("a", 256) + "/a"} {
		if _, err := identity.ParseID(bad); err == nil {
			t.Errorf("%q is taken for an ID", bad)
		}
	}
	if id := identity.NodeID("td", "gpu-1"); id != "spiffe://td/iop/node/gpu-1" || id.TrustDomain() != "td" {
		t.Error(id)
	}
	if identity.EdgeID("td") != "spiffe://td/iop/edge" {
		t.Error(identity.EdgeID("td"))
	}
}

// TL-08: whatever is wrong with a file stops the start, and the message names the file.
func TestBrokenFiles(t *testing.T) {
	ca, other := identitytest.NewCA(t, "ca"), identitytest.NewCA(t, "other")
	expired := identitytest.NewCA(t, "expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	good := ca.Node(t, "gpu-1")
	write := func(name *string, data []byte) {
		if err := os.WriteFile(*name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		damage func(*identity.Files)
		key    string
		text   string
	}{
		"no ca":            {func(f *identity.Files) { os.Remove(f.CA) }, "ca", "doesn't exist"},
		"empty ca":         {func(f *identity.Files) { write(&f.CA, []byte("\n")) }, "ca", "is empty"},
		"ca of no PEM":     {func(f *identity.Files) { write(&f.CA, []byte("hello")) }, "ca", "holds no certificate"},
		"ca is a key":      {func(f *identity.Files) { write(&f.CA, good.KeyPEM) }, "ca", `"PRIVATE KEY"`},
		"ca is a leaf":     {func(f *identity.Files) { write(&f.CA, good.CertPEM) }, "ca", "isn't a CA's"},
		"ca is a device":   {func(f *identity.Files) { f.CA = "/dev/zero" }, "ca", "isn't a regular file"},
		"ca is huge":       {func(f *identity.Files) { write(&f.CA, make([]byte, 2<<20)) }, "ca", "longer than"},
		"ca cut off":       {func(f *identity.Files) { write(&f.CA, append(identitytest.Bundle(ca), "-----BEGIN CERT"...)) }, "ca", "cut off"},
		"expired ca":       {func(f *identity.Files) { write(&f.CA, identitytest.Bundle(expired)) }, "ca", "expired"},
		"another ca":       {func(f *identity.Files) { write(&f.CA, identitytest.Bundle(other)) }, "cert", "no trusted CA"},
		"no cert":          {func(f *identity.Files) { os.Remove(f.Cert) }, "cert", "doesn't exist"},
		"empty cert":       {func(f *identity.Files) { write(&f.Cert, nil) }, "cert", "is empty"},
		"cert is a key":    {func(f *identity.Files) { write(&f.Cert, good.KeyPEM) }, "cert", `"PRIVATE KEY"`},
		"no key":           {func(f *identity.Files) { os.Remove(f.Key) }, "key", "doesn't exist"},
		"empty key":        {func(f *identity.Files) { write(&f.Key, nil) }, "key", "is empty"},
		"key of another":   {func(f *identity.Files) { write(&f.Key, ca.Node(t, "gpu-1").KeyPEM) }, "key", "isn't the private key of"},
		"key is a cert":    {func(f *identity.Files) { write(&f.Key, good.CertPEM) }, "key", "isn't the private key of"},
		"key for everyone": {func(f *identity.Files) { os.Chmod(f.Key, 0o604) }, "key", "open to every user"},
		"expired cert": {func(f *identity.Files) {
			*f = identitytest.Write(t, t.TempDir(), ca.Node(t, "gpu-1", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), ca)
		}, "cert", "expired at"},
		"cert of tomorrow": {func(f *identity.Files) {
			*f = identitytest.Write(t, t.TempDir(), ca.Node(t, "gpu-1", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), ca)
		}, "cert", "isn't valid before"},
		"cert without an id": {func(f *identity.Files) { *f = identitytest.Write(t, t.TempDir(), ca.Leaf(t, ""), ca) }, "cert", "isn't an identity"},
		"another domain": {func(f *identity.Files) {
			any := identitytest.NewCA(t, "any", func(c *x509.Certificate) { c.PermittedURIDomains = nil })
			*f = identitytest.Write(t, t.TempDir(), any.Leaf(t, "spiffe://other.test/a"), any)
		}, "cert", "isn't in the trust domain"},
	} {
		t.Run(name, func(t *testing.T) {
			files := identitytest.Write(t, t.TempDir(), good, ca)
			c.damage(&files)
			_, err := identity.Open(identity.Config{Files: files, TrustDomain: identitytest.TrustDomain})
			var bad *identity.FileError
			if !errors.As(err, &bad) {
				t.Fatalf("%v, want an error about a file", err)
			}
			path := map[string]string{"cert": files.Cert, "key": files.Key, "ca": files.CA}[bad.Key]
			if bad.Key != c.key || bad.Path != path || !strings.Contains(bad.Text, c.text) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v; want %s and %q", bad.Key, err, c.key, c.text)
			}
			if strings.Contains(err.Error(), "MIG") { // how the keys begin
				t.Errorf("the error quotes a file: %v", err)
			}
		})
	}
}

// Files that nobody may read are as good as none. A test as root can't show it.
func TestUnreadableFile(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	ca := identitytest.NewCA(t, "ca")
	files := identitytest.Write(t, t.TempDir(), ca.Node(t, "gpu-1"), ca)
	if err := os.Chmod(files.CA, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.Load(files, time.Now()); err == nil || !strings.Contains(err.Error(), files.CA+" can't be read") {
		t.Error(err)
	}
}

// E25, fault 44: a pair that is replaced file by file is ignored while it is none, and taken once it is one.
func TestReload(t *testing.T) {
	ca, next := identitytest.NewCA(t, "ca"), identitytest.NewCA(t, "next")
	old := ca.Node(t, "gpu-1")
	s, files := identitytest.Open(t, old, ca)
	told := s.Changed()
	if changed, err := s.Reload(); changed || err != nil {
		t.Errorf("nothing changed, but %v, %v", changed, err)
	}
	renewed := ca.Node(t, "gpu-1")
	put := func(path string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(files.Key, renewed.KeyPEM)
	if changed, err := s.Reload(); changed || err == nil || !s.Current().Leaf().Equal(old.Cert) {
		t.Errorf("half a pair: %v, %v", changed, err)
	}
	put(files.Cert, renewed.CertPEM)
	if changed, err := s.Reload(); !changed || err != nil || !s.Current().Leaf().Equal(renewed.Cert) {
		t.Errorf("a whole pair: %v, %v", changed, err)
	}
	select {
	case <-told:
	default:
		t.Error("nobody was told")
	}
	// A bundle that would disown the program's own certificate is a mistake, not a rotation.
	put(files.CA, identitytest.Bundle(next))
	if changed, err := s.Reload(); changed || err == nil {
		t.Errorf("a bundle without its own CA: %v, %v", changed, err)
	}
	put(files.CA, identitytest.Bundle(ca, next))
	if changed, err := s.Reload(); !changed || err != nil || len(s.Current().CAs()) != 2 {
		t.Errorf("a bundle of two: %v, %v", changed, err)
	}
	if !s.Current().SameLeaf(s.Current()) {
		t.Error("SameLeaf")
	}
}

// TL-01: trust is what the bundle says now, not what it said at the handshake.
func TestStill(t *testing.T) {
	ca, next := identitytest.NewCA(t, "ca"), identitytest.NewCA(t, "next")
	edge, files := identitytest.Open(t, next.Edge(t), ca, next)
	node, _ := identitytest.Open(t, ca.Node(t, "gpu-1"), ca, next)
	c, conn := pipe(t)
	accepted := accept(t, edge, conn)
	dial(t, node, c)
	peer := (<-accepted).peer
	if peer == nil || edge.Current().Still(peer, time.Now()) != nil {
		t.Fatal("not accepted")
	}
	if edge.Current().Still(peer, peer.NotAfter.Add(time.Second)) == nil {
		t.Error("good after its end")
	}
	if err := os.WriteFile(files.CA, identitytest.Bundle(next), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := edge.Reload(); !changed || err != nil {
		t.Fatal(err)
	}
	if edge.Current().Still(peer, time.Now()) == nil {
		t.Error("good though its CA was dropped")
	}
}

// A chain ends with whatever in it ends first.
func TestChainEndsWithItsCA(t *testing.T) {
	soon := time.Now().Add(time.Minute).Truncate(time.Second)
	ca := identitytest.NewCA(t, "ca", func(c *x509.Certificate) { c.NotAfter = soon })
	s, _ := identitytest.Open(t, ca.Node(t, "gpu-1"), ca)
	if !s.Current().NotAfter().Equal(soon) {
		t.Errorf("ends %v, want %v", s.Current().NotAfter(), soon)
	}
}
