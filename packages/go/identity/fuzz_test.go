package identity_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
)

// Whatever stands in the files of an identity: no panic, and either an identity with certificates of its CA, or an error
// that names the file and quotes nothing of a key.
func FuzzLoad(f *testing.F) {
	ca := identitytest.NewCA(f, "ca")
	_, files := identitytest.Open(f, ca.Edge(f), ca)
	var seeds [3][]byte
	for i, name := range []string{files.Cert, files.Key, files.CA} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		seeds[i] = b
	}
	f.Add(seeds[0], seeds[1], seeds[2])
	f.Add(seeds[2], seeds[1], seeds[0])
	f.Add(append(seeds[0], seeds[2]...), seeds[1], append(seeds[2], seeds[2]...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), seeds[1], seeds[2])
	f.Add([]byte(nil), []byte("-----BEGIN EC PRIVATE KEY-----\nMA==\n-----END EC PRIVATE KEY-----\n"), []byte("\x00"))
	f.Fuzz(func(t *testing.T, cert, key, trusted []byte) {
		dir := t.TempDir()
		files := identity.Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), CA: filepath.Join(dir, "ca")}
		for name, content := range map[string][]byte{files.Cert: cert, files.Key: key, files.CA: trusted} {
			if err := os.WriteFile(name, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := identity.Load(files, time.Now())
		if (m == nil) == (err == nil) {
			t.Fatal("neither an identity nor an error, or both")
		}
		if err == nil {
			if len(m.CAs()) == 0 {
				t.Fatal("an identity without a CA")
			}
			return
		}
		fault, ok := errors.AsType[*identity.FileError](err)
		if !ok || fault.Path == "" || !strings.HasPrefix(fault.Path, dir) {
			t.Fatalf("%v names no file", err)
		}
		if secret := strings.TrimSpace(string(key)); len(secret) > 20 && strings.Contains(err.Error(), secret) {
			t.Fatal("an error quotes the key")
		}
	})
}

// An ID that is accepted is written as it was read.
func FuzzParseID(f *testing.F) {
	for _, s := range []string{"spiffe://iop.example/iop/edge", "spiffe://iop.example/iop/node/gpu-1", "spiffe://a/iop/node/", "SPIFFE://a/iop/edge", "spiffe://a:1/iop/edge?x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := identity.ParseID(s)
		if err == nil && string(id) != s {
			t.Fatalf("%q is read as %q", s, id)
		}
	})
}
