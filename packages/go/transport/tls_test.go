package transport

import (
	"context"
	"errors"
	"net"
	"testing"

	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
)

// TU-11 under TLS, whose own Close would write an alert behind what nobody takes.
func TestManyLinksCloseUnderTLS(t *testing.T) { manyLinksClose(t, 50, tlsPair) }

// tlsPair is a pair of loopback connections under TLS.
func tlsPair(t testing.TB) (edge, node net.Conn) {
	t.Helper()
	ca := identitytest.NewCA(t, "ca")
	server, _ := identitytest.Open(t, ca.Edge(t), ca)
	client, _ := identitytest.Open(t, ca.Node(t, "a"), ca)
	a, b := tcpPair(t)
	accepted := make(chan error, 1)
	go func() {
		c, _, err := server.Server(context.Background(), a, nil)
		edge = c
		accepted <- err
	}()
	c, _, err := client.Client(t.Context(), b, identity.EdgeID(identitytest.TrustDomain))
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	return edge, c
}
