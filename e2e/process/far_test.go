//go:build e2e

package process

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"iop/e2e/procs"
)

// tun is a network interface of a namespace whose packets this process reads and writes.
type tun struct {
	*os.File
	name string
}

// newTun makes an interface in a namespace. Like a socket, it belongs to the namespace of the thread that makes it.
func newTun(namespace, name string) (*tun, error) {
	type result struct {
		*tun
		error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and isn't given back
		file, err := os.Open("/run/netns/" + namespace)
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			file.Close()
		}
		if err != nil {
			made <- result{error: err}
			return
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			made <- result{error: err}
			return
		}
		request, err := unix.NewIfreq(name)
		if err == nil {
			request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		}
		if err != nil {
			unix.Close(fd)
			made <- result{error: err}
			return
		}
		made <- result{tun: &tun{os.NewFile(uintptr(fd), name), name}}
	}()
	r := <-made
	return r.tun, r.error
}

// path carries packets from one interface to another as a long way does: late, some later than others, so that they
// overtake each other, and some never.
type path struct {
	delay, jitter time.Duration
	loss          float64 // of 1
	rng           *rand.Rand

	mu      sync.Mutex
	due     packets
	carried int
	lost    int
	late    int // overtaken
	wake    chan struct{}
}

type packet struct {
	at    time.Time
	order int
	bytes []byte
}

// packets implements heap.Interface: the one that is due first is on top.
type packets []packet

func (p packets) Len() int           { return len(p) }
func (p packets) Less(i, j int) bool { return p[i].at.Before(p[j].at) }
func (p packets) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *packets) Push(x any)        { *p = append(*p, x.(packet)) }
func (p *packets) Pop() any {
	last := (*p)[len(*p)-1]
	*p = (*p)[:len(*p)-1]
	return last
}

// take reads packets until the interface is closed.
func (p *path) take(from *tun) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.carried++
		if p.rng.Float64() < p.loss {
			p.lost++
			p.mu.Unlock()
			continue
		}
		at := time.Now().Add(p.delay + time.Duration(p.rng.Int64N(int64(p.jitter))))
		heap.Push(&p.due, packet{at, p.carried, append([]byte(nil), buffer[:n]...)})
		p.mu.Unlock()
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// give writes packets when they are due, until done.
func (p *path) give(to *tun, done <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for latest := 0; ; {
		p.mu.Lock()
		wait := time.Hour
		for len(p.due) > 0 {
			if wait = time.Until(p.due[0].at); wait > 0 {
				break
			}
			next := heap.Pop(&p.due).(packet)
			if next.order < latest {
				p.late++
			}
			latest = max(latest, next.order)
			_, _ = to.Write(next.bytes) // an interface that takes no more loses it, as a network may
			wait = time.Hour
		}
		p.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-p.wake:
		case <-done:
			return
		}
	}
}

// The ends of the long way, and its interfaces.
const (
	farEdge, farNode = "10.78.0.1", "10.78.0.2"
	farEnd           = "iop-far"
)

// newFarNetwork is a network whose namespaces are also joined by a long way: 200 ms there and back, 1 % of the packets
// lost, and packets that overtake others.
func newFarNetwork(t *testing.T) (*network, []*path) {
	t.Helper()
	w := newNetwork(t)
	var ends []*tun
	for _, namespace := range []string{w.e, w.n} {
		end, err := newTun(namespace, farEnd)
		if err != nil {
			t.Skipf("a way that loses packets needs /dev/net/tun: %v", err)
		}
		t.Cleanup(func() { end.Close() })
		ends = append(ends, end)
	}
	for i, own := range []string{farEdge, farNode} {
		namespace, peer := []string{w.e, w.n}[i], []string{farNode, farEdge}[i]
		w.must("-n", namespace, "address", "add", own, "peer", peer, "dev", farEnd)
		w.must("-n", namespace, "link", "set", farEnd, "up", "mtu", "1400")
	}
	var paths []*path
	done := make(chan struct{})
	var carriers sync.WaitGroup
	for i, from := range ends {
		p := &path{delay: 95 * time.Millisecond, jitter: 10 * time.Millisecond, loss: 0.01, wake: make(chan struct{}, 1),
			rng: rand.New(rand.NewPCG(13, uint64(i)))}
		carriers.Go(func() { p.take(from) })
		carriers.Go(func() { p.give(ends[1-i], done) })
		paths = append(paths, p)
	}
	t.Cleanup(func() {
		close(done)
		for _, end := range ends {
			end.Close()
		}
		carriers.Wait()
	})
	return w, paths
}

// Row 13: over a long way that loses one packet in a hundred and lets others overtake, answers are slow, and every byte
// of them is the provider's.
func TestFarLink(t *testing.T) {
	w, paths := newFarNetwork(t)
	p := startProvider(t, w.inNode(), w.nodeSide())
	c := w.settle(procs.SiteConfig{Adapters: "[" + adapter("work", p.url(), 32) + "]", Routes: "[{model: work, adapter: work, target: m}]"})
	c.NodesHost = farEdge
	s := newSiteIn(t, c, w.edgeSide(), w.nodeSide())
	var calls []*call
	from := time.Now()
	for i := range 4 {
		calls = append(calls, s.begin(fmt.Sprintf("bulk %d", i), "work", modeBulk))
	}
	for i := range 4 {
		calls = append(calls, s.begin(fmt.Sprintf("whole %d", i), "work", modeAtEnd), s.begin(fmt.Sprintf("silent %d", i), "work", modeSilent))
	}
	eventually(t, limit, "all requests are at the provider", func() bool { return p.state().Begun == len(calls) })
	p.release()
	for _, c := range calls {
		c.await(t, callLimit).whole(t)
	}
	took := time.Since(from)
	leaver := s.begin("who leaves", "work", modeStream)
	p.awaitOpen(1, limit)
	leaver.leave(false)
	cancel := p.awaitOpen(0, promise)
	s.settled()
	if n := s.Edge.Count("node fenced"); n != 0 {
		t.Errorf("the link was lost %d times", n)
	}
	var carried, lost, late int
	for _, way := range paths {
		way.mu.Lock()
		carried, lost, late = carried+way.carried, lost+way.lost, late+way.late
		way.mu.Unlock()
	}
	t.Logf("4 MiB and 8 small answers in %v, a cancel at the provider after %v; of %d packets %d were lost and %d overtaken; round trip %v",
		took.Round(time.Millisecond), cancel.Round(time.Millisecond), carried, lost, late, s.roundTrip().Round(time.Millisecond))
	if lost == 0 || late == 0 || carried < 1000 {
		t.Error("the way wasn't that bad")
	}
}
