package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// pair connects two hosts.
func pair(t *testing.T) (n *network, near, far net.Conn) {
	t.Helper()
	n = newNetwork(1, func(string, string, ...any) {})
	l, err := n.listen("edge")
	if err != nil {
		t.Fatal(err)
	}
	if near, err = n.dial(t.Context(), "node", "edge"); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return n, near, far
}

// Whatever the network does but cut, bytes arrive once and in order.
func TestWireKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, near, far := pair(t)
		sent := make([]byte, 3*socketBuffers+7)
		fill(sent, "wire", 0, 0)
		go func() {
			for rest := sent; len(rest) > 0; {
				k := min(len(rest), 40_000)
				if _, err := near.Write(rest[:k]); err != nil {
					t.Errorf("write: %v", err)
				}
				rest = rest[k:]
				time.Sleep(time.Millisecond)
			}
			near.Close()
		}()
		go func() {
			time.Sleep(3 * time.Millisecond)
			n.setDeaf("node", "edge", true)
			time.Sleep(time.Second)
			n.setDeaf("node", "edge", false)
		}()
		got, err := io.ReadAll(far)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes of %d, %v", len(got), len(sent), err)
		}
		far.Close()
	})
}

// What a cut looks like to both sides, to one, and to who has a deadline.
func TestWireEnds(t *testing.T) {
	read := func(c net.Conn) error {
		_, err := c.Read(make([]byte, 1))
		return err
	}
	synctest.Test(t, func(t *testing.T) {
		n, near, far := pair(t)
		n.wires[0].cut(-1)
		if err, other := read(near), read(far); err != errReset || other != errReset {
			t.Errorf("cut: %v and %v", err, other)
		}

		n, near, far = pair(t)
		n.wires[0].cut(0)
		_ = far.SetReadDeadline(time.Now().Add(time.Hour))
		if err, other := read(near), read(far); err != errReset || !errors.Is(other, os.ErrDeadlineExceeded) {
			t.Errorf("half-open: %v and %v", err, other)
		}
		if _, err := far.Write([]byte("nobody hears it")); err != nil {
			t.Errorf("who doesn't know writes: %v", err)
		}

		_, near, far = pair(t)
		_, _ = near.Write([]byte("unread"))
		time.Sleep(time.Second)
		far.Close() // with bytes that nobody has read: a reset, as with a kernel
		if err := read(near); err != errReset {
			t.Errorf("closed with unread bytes: %v", err)
		}
		near.Close()
	})
}

// A path that carries nothing makes a dial wait, and a host that isn't there refuses it.
func TestDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, _ := pair(t)
		n.setDeaf("edge", "other", true)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := n.dial(ctx, "other", "edge"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deaf: %v", err)
		}
		if _, err := n.dial(t.Context(), "other", "nowhere"); err == nil {
			t.Error("nobody listens, and the dial succeeded")
		}
	})
}
