package sim

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing/synctest"
	"time"
)

// network connects hosts. A connection delays what is sent on it, each direction by itself, and a path between two
// hosts can stop carrying anything, in one direction or both. All of it is by the seed.
type network struct {
	seed uint64
	tell func(wire, what string, args ...any) // of what became of connections

	mu        sync.Mutex
	listeners map[string]*listener
	wires     []*wire // in the order of their dials
	dials     map[string]int
	deaf      map[path]bool // paths that carry nothing
}

// path is one direction between two hosts.
type path struct{ from, to string }

func newNetwork(seed uint64, tell func(wire, what string, args ...any)) *network {
	return &network{seed: seed, tell: tell, listeners: map[string]*listener{}, dials: map[string]int{}, deaf: map[path]bool{}}
}

// listener is where a host accepts.
type listener struct {
	net   *network
	host  string
	queue chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// listen opens the port of a host; there is one.
func (n *network) listen(host string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[host] != nil {
		return nil, fmt.Errorf("listen %s: address in use", host)
	}
	l := &listener{net: n, host: host, queue: make(chan net.Conn, 64), done: make(chan struct{})}
	n.listeners[host] = l
	return l, nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Who was connected and isn't accepted is cut.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, l.host)
		l.net.mu.Unlock()
		close(l.done)
		for {
			select {
			case c := <-l.queue:
				c.(*end).abort()
			default:
				return
			}
		}
	})
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return address(l.host) }

type address string

func (address) Network() string  { return "sim" }
func (a address) String() string { return string(a) }

// dial connects two hosts, which takes a round trip. A path that carries nothing makes it wait.
func (n *network) dial(ctx context.Context, from, to string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[from+">"+to]++
	name := fmt.Sprintf("%s>%s#%d", from, to, n.dials[from+">"+to])
	n.mu.Unlock()
	timer := time.NewTimer(newDice(n.seed, "dial", name).between(200*time.Microsecond, 40*time.Millisecond))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		n.mu.Lock()
		if n.deaf[path{from, to}] || n.deaf[path{to, from}] {
			n.mu.Unlock()
			timer.Reset(time.Second + time.Duration(hashOf(n.seed, name)%uint64(time.Second))) // the next SYN
			continue
		}
		l := n.listeners[to]
		if l == nil {
			n.mu.Unlock()
			return nil, fmt.Errorf("dial %s: connection refused", to)
		}
		w := newWire(n, name, from, to)
		select {
		case l.queue <- w.ends[1]:
		default:
			n.mu.Unlock()
			return nil, fmt.Errorf("dial %s: backlog is full", to)
		}
		n.wires = append(n.wires, w)
		n.mu.Unlock()
		n.tell(name, "connected")
		return w.ends[0], nil
	}
}

// setDeaf stops a path from carrying anything, or lets it carry again: what was held is on its way then.
func (n *network) setDeaf(from, to string, on bool) {
	n.mu.Lock()
	was := n.deaf[path{from, to}]
	if on {
		n.deaf[path{from, to}] = true
	} else {
		delete(n.deaf, path{from, to})
	}
	n.mu.Unlock()
	if was == on {
		return
	}
	for _, w := range n.all() {
		w.setDeaf(from, to, on)
	}
}

// heal makes every path carry again.
func (n *network) heal() {
	n.mu.Lock()
	var paths []path
	for p := range n.deaf {
		paths = append(paths, p)
	}
	n.mu.Unlock()
	for _, p := range paths {
		n.setDeaf(p.from, p.to, false)
	}
}

// all are the wires that aren't over, in the order of their dials.
func (n *network) all() []*wire {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.wires[:0]
	for _, w := range n.wires {
		if !w.over() {
			kept = append(kept, w)
		}
	}
	clear(n.wires[len(kept):])
	n.wires = kept
	return append([]*wire(nil), kept...)
}

// between are the wires between two hosts that aren't over.
func (n *network) between(a, b string) []*wire {
	var found []*wire
	for _, w := range n.all() {
		if w.from == a && w.to == b || w.from == b && w.to == a {
			found = append(found, w)
		}
	}
	return found
}

// of are the wires of a host that aren't over.
func (n *network) of(host string) []*wire {
	var found []*wire
	for _, w := range n.all() {
		if w.from == host || w.to == host {
			found = append(found, w)
		}
	}
	return found
}

// unplug ends everything that a host has: the kernel of a process that crashed resets its connections, a machine without
// power says nothing. The connections end first: what a program notices of both in one instant would be anybody's guess.
func (n *network) unplug(host string, silent bool) {
	for _, w := range n.of(host) {
		e := w.ends[0]
		if w.to == host {
			e = w.ends[1]
		}
		if silent {
			n.tell(w.name, "goes silent")
			e.vanish()
		} else {
			n.tell(w.name, "is reset")
			e.abort()
		}
	}
	synctest.Wait()
	n.mu.Lock()
	l := n.listeners[host]
	n.mu.Unlock()
	if l != nil {
		_ = l.Close()
		synctest.Wait()
	}
}
