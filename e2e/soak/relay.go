package main

import (
	"net"
	"sync"
	"sync/atomic"
)

// relay stands between a node and the edge. It forwards, loses everything in one or both directions without a word, or
// resets.
type relay struct {
	listener net.Listener
	target   string
	toEdge   atomic.Bool // what the node sends is lost
	toNode   atomic.Bool

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{}
}

func newRelay(target string) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, target: target, conns: map[*net.TCPConn]struct{}{}}
	go r.accept() // ends with the listener
	return r, nil
}

func (r *relay) addr() string { return r.listener.Addr().String() }

// lose sets which directions are lost.
func (r *relay) lose(toEdge, toNode bool) {
	r.toEdge.Store(toEdge)
	r.toNode.Store(toNode)
}

// reset ends every connection with RST.
func (r *relay) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.SetLinger(0) // it may have ended
		c.Close()
	}
}

func (r *relay) close() {
	r.listener.Close()
	r.reset()
}

func (r *relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.target)
		if err != nil {
			near.Close()
			continue
		}
		go r.serve(near.(*net.TCPConn), far.(*net.TCPConn))
	}
}

// serve forwards both directions of one connection until both have ended.
func (r *relay) serve(near, far *net.TCPConn) {
	r.mu.Lock()
	r.conns[near], r.conns[far] = struct{}{}, struct{}{}
	r.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() { r.copy(near, far, &r.toNode) })
	r.copy(far, near, &r.toEdge)
	back.Wait()
	near.Close()
	far.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, near)
	delete(r.conns, far)
}

// copy forwards one direction. A direction that is lost loses its end, too.
func (r *relay) copy(to, from *net.TCPConn, lost *atomic.Bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !lost.Load() {
			if _, werr := to.Write(buffer[:n]); werr != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			if !lost.Load() {
				_ = to.CloseWrite() // the other side may be gone
			}
			return
		}
	}
}
