package upstream_test

import (
	"errors"
	"testing"
	"time"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

// HT-14, CP-11, protocol.md's experiment 10: a kept connection that ends under a request is replaced only if it took no
// byte of it. One byte may have been enough for the provider to begin.
func TestKeptConnectionThatEndsUnderARequest(t *testing.T) {
	for taken, again := range map[int]bool{0: true, 1: false, 30: false} {
		p := fakeprovider.New(t, fakeprovider.Answer(200, "application/json", "{}"))
		c := client(t, p.URL())
		c.KeepIdle(time.Minute)
		if _, err := adaptertest.Do(t, t.Context(), c, chat()); err != nil {
			t.Fatal(err)
		}
		c.ShortWrite(taken)
		_, err := adaptertest.Do(t, t.Context(), c, chat())
		f, failed := errors.AsType[*execution.Failure](err)
		opened, _ := p.Connections()
		switch {
		case again && (err != nil || opened != 2):
			t.Errorf("after %d bytes: %v over %d connections", taken, err, opened)
		case !again && (!failed || f.Code != execution.CodeUpstreamTruncated || f.NothingSent || opened != 1):
			t.Errorf("after %d bytes: %v over %d connections", taken, err, opened)
		}
	}
}
