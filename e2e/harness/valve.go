package harness

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// Valve is a relay between node and edge that understands the multiplexer: it can hold back frames from edge to node
// until it is opened, and lets the others pass them.
type Valve struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu    sync.Mutex
	hold  func(MuxFrame) bool // nil = nothing
	held  [][]byte
	to    net.Conn // where held frames go
	conns []net.Conn
}

// NewValve starts a valve in front of an edge; it ends with the test.
func NewValve(t testing.TB, target string) *Valve {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &Valve{listener: l, target: target}
	v.wg.Go(v.accept)
	t.Cleanup(func() {
		l.Close()
		v.mu.Lock()
		for _, c := range v.conns {
			c.Close()
		}
		v.mu.Unlock()
		v.wg.Wait()
	})
	return v
}

// Addr is where the node dials.
func (v *Valve) Addr() string { return v.listener.Addr().String() }

// Hold holds back what it is true for.
func (v *Valve) Hold(hold func(MuxFrame) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hold = hold
}

// Held is how many frames are held back.
func (v *Valve) Held() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.held)
}

// Open lets through what was held, in its order, and everything that comes.
func (v *Valve) Open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hold = nil
	for _, b := range v.held {
		_, _ = v.to.Write(b)
	}
	v.held = nil
}

func (v *Valve) accept() {
	for {
		node, err := v.listener.Accept()
		if err != nil {
			return
		}
		edge, err := net.Dial("tcp", v.target)
		if err != nil {
			node.Close()
			continue
		}
		v.mu.Lock()
		v.conns = append(v.conns, node, edge)
		v.to = node
		v.mu.Unlock()
		v.wg.Go(func() {
			_, _ = io.Copy(edge, node)
			edge.Close()
		})
		v.wg.Go(func() {
			v.toNode(node, edge)
			node.Close()
		})
	}
}

// toNode forwards the answer to the registration as it is, and then frame by frame.
func (v *Valve) toNode(node, edge net.Conn) {
	var prefix [4]byte
	if _, err := io.ReadFull(edge, prefix[:]); err != nil {
		return
	}
	if _, err := node.Write(prefix[:]); err != nil {
		return
	}
	if _, err := io.CopyN(node, edge, int64(binary.BigEndian.Uint32(prefix[:]))); err != nil {
		return
	}
	for {
		f, err := readMuxFrame(edge)
		if err != nil {
			return
		}
		if err := v.pass(node, f); err != nil {
			return
		}
	}
}

func (v *Valve) pass(node net.Conn, f MuxFrame) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.hold != nil && v.hold(f) {
		v.held = append(v.held, f.Bytes())
		return nil
	}
	_, err := node.Write(f.Bytes())
	return err
}
