//go:build e2e

package process

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"iop/e2e/procs"
)

const roleBusy = "busy"

// playBusy keeps every processor busy twice over until standard input ends.
func playBusy() int {
	for range 2 * runtime.NumCPU() {
		go func() {
			for n := uint(1); n != 0; n *= 3 { // an odd number never becomes 0
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// Row 54 of the fault catalogue: without descriptors the edge goes on with what it has, says why it takes nothing more,
// and takes it when there are some again.
func TestEdgeWithoutDescriptors(t *testing.T) {
	const dead = 8 * time.Second
	late := newMember("late", "[{name: loopback, kind: loopback, max_concurrency: 1}]")
	s := newSite(t, procs.SiteConfig{
		Adapters:   "[{name: loopback, kind: loopback, max_concurrency: 8}]",
		MoreNodes:  []string{late.record},
		Edge:       fmt.Sprintf("timers: {heartbeat: 500ms, dead: %s, header_read: 1m}", dead), // callers that say nothing stay
		EdgePrefix: []string{"sh", "-c", `ulimit -n 64; exec "$0" "$@"`},
	})
	running := s.ask0("loopback: tokens=1000 delay=20ms")
	running.awaitText(t, "data:")

	idle := occupy(t, s.HTTP, 80)
	const text = "connections can't be accepted; raise the limit of open files (ulimit -n)"
	said(t, s.Edge, text, 1)
	late.start(s, "timers: {backoff_start: 100ms, backoff_max: 500ms}")
	said(t, s.Edge, "node "+text, 1)
	waiting := begin(t, nil, s.HTTP, "a caller in the kernel's queue", chat("loopback", "loopback: delay=0s"))
	select {
	case <-running.done:
		t.Fatalf("a running answer ended when descriptors did: %s", running)
	case <-waiting.done:
		t.Fatalf("served without a descriptor: %s", waiting)
	case <-time.After(dead + time.Second): // the link lives
	}

	for _, c := range idle {
		c.Close()
	}
	from := time.Now()
	if waiting.await(t, limit); waiting.status != 200 || waiting.err != nil {
		t.Errorf("%s", waiting)
	}
	t.Logf("served %v after there were descriptors again", time.Since(from).Round(time.Millisecond))
	eventually(t, limit, "both nodes are ready", func() bool { return s.ready() == 2 })
	if running.await(t, limit); running.err != nil || !strings.HasSuffix(running.text(), doneEvent) {
		t.Errorf("%s", running)
	}
	s.settled()
	for l := range strings.Lines(s.Edge.Log()) {
		if !json.Valid([]byte(l)) {
			t.Errorf("a line that isn't a log entry: %s", l)
		}
	}
	if n := len(s.Edge.Entries("node fenced")); n != 0 {
		t.Errorf("%d links were lost", n)
	}
}

// occupy opens connections that say nothing. What isn't accepted waits in the kernel.
func occupy(t *testing.T, addr string, n int) []net.Conn {
	t.Helper()
	var idle []net.Conn
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		idle = append(idle, c)
	}
	return idle
}

// Row 55, TU-27 (scaled): on a machine with twice the work that it can do, with one processor for each program and bulk
// beside it, nobody is taken for dead.
func TestBusyMachine(t *testing.T) {
	const dead = 8 * time.Second
	p := startProvider(t, nil, nil)
	one := []string{"env", "GOMAXPROCS=1"}
	s := newSite(t, procs.SiteConfig{
		Adapters: "[" + adapter("work", p.url(), 8) + "]", Routes: "[{model: work, adapter: work, target: m}]",
		Edge: fmt.Sprintf("timers: {heartbeat: 500ms, dead: %s}", dead), EdgePrefix: one, NodePrefix: one,
	})
	paced := s.begin("a paced stream", "work", modeStream)
	paced.awaitText(t, "data:")
	startRole(t, roleBusy, nil)
	until := time.Now().Add(2 * dead)
	megabytes := 0
	for ; time.Now().Before(until); megabytes += 4 {
		var bulk []*call
		for range 4 {
			bulk = append(bulk, s.begin("bulk", "work", modeBulk))
		}
		for _, c := range bulk {
			c.await(t, callLimit).whole(t)
		}
	}
	p.release()
	paced.await(t, limit).whole(t)
	gap := paced.longestGap()
	t.Logf("%d MB beside a stream of an event every %v: its longest gap was %v", megabytes, eventPause, gap.Round(time.Millisecond))
	if gap > dead {
		t.Errorf("the stream stood still for %v", gap)
	}
	if n := len(s.Edge.Entries("node registered")); n != 1 {
		t.Errorf("the node registered %d times", n)
	}
	s.settled()
}
