package main

import (
	"io"
	"net"
	"sync"
	"time"
)

// path is a network path between node and edge: a delay each way and a rate. It stands in for a real one; what it
// can't show is loss and reorder.
type path struct {
	listener net.Listener
	target   string
	delay    time.Duration // one way
	rate     int64         // bytes a second each way, 0 = no limit
}

func newPath(target string, delay time.Duration, rate int64) (*path, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &path{listener: listener, target: target, delay: delay, rate: rate}
	go p.accept() // ends with the listener
	return p, nil
}

func (p *path) addr() string { return p.listener.Addr().String() }
func (p *path) close()       { p.listener.Close() }

func (p *path) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if err != nil {
			near.Close()
			continue
		}
		var once sync.Once
		end := func() { once.Do(func() { near.Close(); far.Close() }) }
		go p.carry(far, near, end)
		go p.carry(near, far, end)
	}
}

type packet struct {
	due  time.Time
	data []byte
}

// carry moves one direction. What is under way is bounded by the bandwidth-delay product, so that the sender feels
// the path and not this program's memory; the receive buffer is kept small for the same reason.
func (p *path) carry(to, from net.Conn, end func()) {
	const size = 16 << 10
	slots := 4096
	if p.rate > 0 {
		slots = max(2, int(float64(p.rate)*p.delay.Seconds()/size)+2)
		_ = from.(*net.TCPConn).SetReadBuffer(32 << 10) // a hint; the kernel may round it
	}
	queue := make(chan packet, slots)
	go func() { // ends when the reader below closes the queue
		defer end()
		for pkt := range queue {
			if wait := time.Until(pkt.due); wait > 0 {
				time.Sleep(wait)
			}
			if _, err := to.Write(pkt.data); err != nil {
				break
			}
		}
		for range queue { // the reader may be waiting for room
		}
	}()
	defer close(queue)
	free := time.Now() // when the wire has sent what came before
	for {
		buffer := make([]byte, size)
		n, err := from.Read(buffer)
		if n > 0 {
			now := time.Now()
			if free.Before(now) {
				free = now
			}
			if p.rate > 0 {
				free = free.Add(time.Duration(int64(n) * int64(time.Second) / p.rate))
				if wait := time.Until(free); wait > time.Millisecond {
					time.Sleep(wait)
				}
			}
			queue <- packet{due: free.Add(p.delay), data: buffer[:n]}
		}
		if err != nil {
			if err != io.EOF {
				end()
			}
			return
		}
	}
}
