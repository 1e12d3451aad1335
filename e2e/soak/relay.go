package main

import (
	"net"
	"sync"
)

// relay stands between a node and the edge. It forwards, keeps everything back in one or both directions without a word,
// or resets. What it kept back it forwards later: a network that loses packets for a while makes TCP late, it takes no
// byte out of its middle.
type relay struct {
	listener net.Listener
	target   string
	toEdge   direction // what the node sends
	toNode   direction

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{}
}

// direction is one way through a relay.
type direction struct {
	mu   sync.Mutex
	open chan struct{} // closed while bytes may pass
}

// set opens or shuts the direction.
func (d *direction) set(open bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.open:
		if !open {
			d.open = make(chan struct{})
		}
	default:
		if open {
			close(d.open)
		}
	}
}

// pass waits until the direction is open.
func (d *direction) pass() {
	d.mu.Lock()
	open := d.open
	d.mu.Unlock()
	<-open
}

func newRelay(target string) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, target: target, conns: map[*net.TCPConn]struct{}{}}
	for _, d := range []*direction{&r.toEdge, &r.toNode} {
		d.open = make(chan struct{})
		close(d.open)
	}
	go r.accept() // ends with the listener
	return r, nil
}

func (r *relay) addr() string { return r.listener.Addr().String() }

// lose sets in which directions nothing arrives.
func (r *relay) lose(toEdge, toNode bool) {
	r.toEdge.set(!toEdge)
	r.toNode.set(!toNode)
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
	r.lose(false, false)
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

// copy forwards one direction. What comes while it is shut, its end too, comes later.
func (r *relay) copy(to, from *net.TCPConn, d *direction) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		d.pass()
		if n > 0 {
			if _, werr := to.Write(buffer[:n]); werr != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			_ = to.CloseWrite() // the other side may be gone
			return
		}
	}
}
