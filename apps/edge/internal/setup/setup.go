// Package setup makes everything that a first site in mode managed needs, in one directory: a CA, the identities of an
// Edge and a node, the node's token, a caller's key, and two configuration files to go on from.
//
// It owns the layout of that directory, and that running it again is harmless: what is there is kept, certificates are
// renewed in the second half of their life. It is a tool, not a service, and it shows no secret.
package setup

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"iop/apps/edge/internal/ca"
	"iop/packages/go/config"
	"iop/packages/go/identity"
	"iop/packages/go/program"
)

// caTTL is how long the CA is valid.
const caTTL = 10 * 365 * 24 * time.Hour

// Options say what is made.
type Options struct {
	Dir         string        // where; made when missing
	TrustDomain string        // of a new CA
	Node        string        // the node's id in the Edge's configuration
	Caller      string        // the caller's
	Edge        string        // where the node dials, host:port
	Nodes, HTTP string        // where the Edge listens, host:port
	TTL         time.Duration // how long certificates are valid
	Configs     bool          // make edge.yaml and node.yaml where they are missing
}

// site is a directory and what is said of it.
type site struct {
	Options
	now   time.Time
	made  []string
	owner *ca.Authority
}

// Make makes what is missing and returns what it made, for people.
func Make(o Options, now time.Time) (made []string, err error) {
	s := &site{Options: o, now: now}
	if err := s.authority(); err != nil {
		return nil, err
	}
	domain := s.owner.TrustDomain()
	steps := []func() error{
		func() error { return s.certificate("edge", identity.EdgeID(domain)) },
		func() error { return s.certificate(o.Node, identity.NodeID(domain, o.Node)) },
		func() error {
			return s.secret(s.path(o.Node, "node.token"), s.path("edge", o.Node+".token.sha256"), func() (config.Secret, string) {
				return config.NewPinnedToken(ca.Fingerprint(s.owner.Cert))
			})
		},
		func() error {
			return s.secret(KeyFile(o.Dir, o.Caller), s.path("edge", o.Caller+".key.sha256"), config.NewKey)
		},
	}
	if o.Configs {
		steps = append(steps,
			func() error { return s.file("edge", "edge.yaml", edgeConfig) },
			func() error { return s.file(o.Node, "node.yaml", nodeConfig) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return s.made, err
		}
	}
	return s.made, nil
}

// KeyFile is where the key of a caller is.
func KeyFile(dir, caller string) string { return filepath.Join(dir, "callers", caller+".key") }

func (s *site) path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}

// authority opens the CA, or makes it where nothing was signed yet: another one than that of the identities here would
// lock everybody out.
func (s *site) authority() error {
	dir := s.path("ca")
	_, err := os.Lstat(filepath.Join(dir, "ca.pem"))
	if err == nil {
		s.owner, err = ca.Open(dir)
		return err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, who := range []string{"edge", s.Node} {
		if _, err := os.Lstat(s.path(who, ca.CertFile)); err == nil {
			return fmt.Errorf("%s is the certificate of a CA that isn't in %s any more; bring ca.pem back, or begin in another directory", s.path(who, ca.CertFile), dir)
		}
	}
	if s.owner, err = ca.Init(dir, s.TrustDomain, caTTL); err != nil {
		return err
	}
	s.made = append(s.made, dir)
	return nil
}

// certificate makes an identity, or renews one that isn't good for long any more, or not what it should be.
func (s *site) certificate(who string, id identity.ID) error {
	files := identity.Files{Cert: s.path(who, ca.CertFile), Key: s.path(who, ca.KeyFile), CA: s.path(who, ca.CAFile)}
	bundle, err := ca.Bundle(s.path("ca"))
	if err != nil {
		return err
	}
	trusted, _ := os.ReadFile(files.CA) // what can't be read is made anew
	m, err := identity.Load(files, s.now)
	if err == nil && m.ID() == id && string(trusted) == bundle {
		if whole := m.NotAfter().Sub(m.Leaf().NotBefore); m.NotAfter().Sub(s.now) > whole/2 {
			return nil
		}
	}
	if _, err := s.owner.Issue(s.path("ca"), s.path(who), id, s.TTL); err != nil {
		return err
	}
	s.made = append(s.made, files.Cert)
	return nil
}

// secret makes a secret where there is none, and brings its hash to where the Edge reads it.
func (s *site) secret(path, hashPath string, create func() (config.Secret, string)) error {
	secret, hash := create()
	switch err := program.CreateSecretFile(path, secret); {
	case err == nil:
		s.made = append(s.made, path)
	case !errors.Is(err, fs.ErrExist):
		return err
	default:
		kept, err := config.ReadTokenFile(path)
		if err != nil {
			return fmt.Errorf("%s %w", path, err)
		}
		sum := config.HashSecret(kept.Reveal())
		hash = hex.EncodeToString(sum[:])
	}
	if old, err := os.ReadFile(hashPath); err == nil && string(old) == hash+"\n" {
		return nil // the Edge isn't made to read it again
	}
	return program.WriteFile(hashPath, hash+"\n", 0o644)
}

// file writes a configuration where there is none.
func (s *site) file(who, name, format string) error {
	path := s.path(who, name)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.made = append(s.made, path)
	return program.WriteFile(path, s.expand(format), 0o644)
}
