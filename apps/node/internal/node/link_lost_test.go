package node_test

import (
	"errors"
	"testing"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/packages/go/transport"
)

// §2.D link lost in opening and in lingering: an open of which only a part has come starts nothing, an answer that nobody
// has taken yet is let go, and nothing of either is left.
func TestLinkLostAroundAnExecution(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	raw := r.connectRaw(9)
	if err := errors.Join(raw.OpenStream(2), raw.SendBytes(2, 100, []byte("a part of an open"))); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, "the stream is there", func() bool { return r.mux.Status().OpenStreams == 1 })
	r.mux.Close(transport.ReasonLost)
	nodetest.Receive(t, "the link's end", raw.Ended)
	r.atRest()
	if ended := len(r.seen.all()); ended != 0 {
		t.Errorf("%d executions ended, and none had begun", ended)
	}

	r = newRig(t, &nodetest.Adapter{})
	r.Start("r1")
	r.RunEnd("r1")
	nodetest.Eventually(t, "the answer waits for its reader", func() bool { return r.Snapshot().Lingering == 1 })
	r.mux.Close(transport.ReasonLost)
	r.atRest()
	nodetest.Eventually(t, "it has ended once", func() bool { return len(r.seen.all()) == 1 })
}

func (o *observer) all() []node.Ended {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}
