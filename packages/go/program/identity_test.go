package program

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/rs/zerolog"

	"iop/packages/go/identity/identitytest"
	"iop/packages/go/patience"
)

// E25, CF-02: files that change are taken, half of a pair is told of once and ignored, and somebody who asks is heard.
func TestFollowIdentity(t *testing.T) {
	ca := identitytest.NewCA(t, "ca")
	s, files := identitytest.Open(t, ca.Node(t, "a"), ca)
	ctx, cancel := context.WithCancel(t.Context())
	failed, changed, asked := make(chan error, 10), make(chan struct{}, 10), make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		FollowIdentity(ctx, s, asked, zerolog.Nop(), func(err error) { failed <- err }, func() { changed <- struct{}{} })
	}()
	defer func() { cancel(); <-ended }()
	asked <- struct{}{} // taken: it runs, and nothing has changed

	next := ca.Node(t, "a")
	put := func(path string, data []byte) { // at once: half a file would be told of, too
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", data, 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	put(files.Key, next.KeyPEM)
	if err := patience.Receive(t, "the half pair is told of", failed); err == nil {
		t.Error("without a reason")
	}
	asked <- struct{}{} // whoever asks is told again
	patience.Receive(t, "it is told of again", failed)
	put(files.Cert, next.CertPEM)
	patience.Receive(t, "the pair is taken", changed)
	if !s.Current().Leaf().Equal(next.Cert) {
		t.Error("another one is in force")
	}
	if len(failed) != 0 {
		t.Errorf("told again: %v", <-failed)
	}
}
