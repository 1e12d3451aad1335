package transport

import (
	"errors"
	"net"
	"os"
	"testing"
)

// The first look at which a connection is overdue may come late, after the process stood still: what its peer has said
// meanwhile is read. The next look ends the wait.
func TestOverdueAtTwoLooks(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	var c crowd
	defer c.enter(near, 0)()
	c.giveWay()
	go func() { _, _ = far.Write([]byte("x")) }() // ends with the read
	if _, err := near.Read(make([]byte, 1)); err != nil {
		t.Fatal("ended at the first look: ", err)
	}
	c.giveWay()
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("not ended at the second look: %v", err)
	}
}
