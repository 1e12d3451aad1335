package ca

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/program"
)

// The stages of a rotation, in their order. Between two of them every edge and node must have got the new bundle, and
// before the last one new certificates, too.
const (
	StageAdd    = "add"    // the next CA is made and trusted beside the one that signs
	StageSwitch = "switch" // the next CA signs; the one before is still trusted
	StageRetire = "retire" // the one before isn't trusted any more
)

// Rotate does one stage. Each can be repeated after it was cut off, and is refused out of order.
func Rotate(dir, stage string, ttl time.Duration) error {
	active, err := Open(dir)
	if err != nil {
		return err
	}
	next, err := readAuthority(filepath.Join(dir, nextFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	previous, err := readPrevious(dir)
	if err != nil {
		return err
	}
	switch stage {
	case StageAdd:
		return add(dir, active, next, previous, ttl)
	case StageSwitch:
		return change(dir, active, next)
	case StageRetire:
		return retire(dir, active, next, previous)
	}
	return fmt.Errorf("%q isn't a stage: use %s, %s and %s, in this order", stage, StageAdd, StageSwitch, StageRetire)
}

func add(dir string, active, next *Authority, previous *x509.Certificate, ttl time.Duration) error {
	if previous != nil {
		return errors.New("the rotation before isn't finished: retire the CA that it replaced first")
	}
	if next == nil {
		var err error
		if next, err = newAuthority(active.TrustDomain(), ttl); err != nil {
			return err
		}
		if err := next.store(filepath.Join(dir, nextFile)); err != nil {
			return err
		}
	}
	return writeBundle(dir, active.Cert, next.Cert)
}

func change(dir string, active, next *Authority) error {
	if next == nil {
		return errors.New("there is no next CA: begin with the stage add")
	}
	if err := program.WriteFile(filepath.Join(dir, previousFile), encode("CERTIFICATE", active.Cert.Raw), 0o644); err != nil {
		return err
	}
	if err := writeBundle(dir, next.Cert, active.Cert); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, nextFile), filepath.Join(dir, activeFile))
}

func retire(dir string, active, next *Authority, previous *x509.Certificate) error {
	if next != nil {
		return errors.New("the next CA doesn't sign yet: the stage switch comes before retire")
	}
	if previous == nil {
		return errors.New("there is no CA to retire: begin with the stage add")
	}
	if err := writeBundle(dir, active.Cert); err != nil {
		return err
	}
	return os.Remove(filepath.Join(dir, previousFile))
}

func readPrevious(dir string) (*x509.Certificate, error) {
	path := filepath.Join(dir, previousFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	certs, err := identity.ReadCertificates(path)
	if err != nil {
		return nil, err
	}
	return certs[0], nil
}
