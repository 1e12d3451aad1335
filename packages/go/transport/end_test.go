package transport

import (
	"net"
	"sync"
	"testing"
)

// Whoever finds that the link is over already must see so, too: a stream whose end is noticed in that moment would
// else end as if its peer had closed it on a live link, and its run as protocol in place of node_lost. Seen on a loaded
// machine.
func TestLinkIsDownForWhoeverComesSecond(t *testing.T) {
	for range 3000 {
		near, far := net.Pipe()
		l := NewNodeLink(near, Config{}, nil)
		var ends sync.WaitGroup
		for range 4 {
			ends.Go(func() {
				l.Close(ReasonLost)
				if !l.isDown() {
					t.Error("Close returned on a link that isn't down")
				}
			})
		}
		ends.Wait()
		near.Close()
		far.Close()
	}
}
