//go:build e2e

package process

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"iop/e2e/procs"
)

// Rows 17, 18, 20, 21 and 23 of the fault catalogue over real processes: what a caller sees when its provider is slow,
// silent, refuses, breaks off, or isn't there.
func TestProviderFaults(t *testing.T) {
	nobody, err := procs.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, procs.SiteConfig{
		Adapters: "[{name: loopback, kind: loopback, max_concurrency: 4}, " + adapter("closed", "http://"+nobody, 4) + "]",
		Routes: `[{model: late, adapter: loopback, target: loopback, first_byte: 400ms}, {model: silent, adapter: loopback, target: loopback, idle: 400ms},
  {model: patient, adapter: loopback, target: loopback}, {model: closed, adapter: closed, target: m, fail_fast: true},
  {model: brief, adapter: loopback, target: loopback, deadline: 400ms}, {model: longer, adapter: loopback, target: loopback, deadline: 3s}]`,
	})
	for _, tt := range []struct {
		name, model, prompt string
		check               func(c *call)
	}{
		{"slow to its first byte", "late", "loopback: first=1h", func(c *call) { c.refused(t, 504, "first_byte_timeout") }},
		{"silent in the middle", "silent", "loopback: stall=3 delay=0s", func(c *call) { brokenOff(t, c) }},
		{"over the deadline", "brief", "loopback: first=1h", func(c *call) { c.refused(t, 504, "deadline") }},
		{"over the deadline in the middle", "longer", "loopback: tokens=10000", func(c *call) { brokenOff(t, c) }},
		{"breaks off", "patient", "loopback: cut=3 delay=0s", func(c *call) { brokenOff(t, c) }},
		{"refuses", "patient", "loopback: fail=429", func(c *call) {
			if c.status != 429 || c.err != nil || c.header.Get("X-Iop-Node") != procs.NodeID {
				t.Errorf("%s", c)
			}
		}},
		{"isn't there", "closed", "hi", func(c *call) { c.refused(t, 503, "no_node", "adapter_unavailable") }},
	} {
		from := time.Now()
		c := begin(t, nil, s.HTTP, tt.name, chat(tt.model, tt.prompt)).await(t, limit)
		tt.check(c)
		if took := time.Since(from); took > 3*time.Second+promise {
			t.Errorf("%s: after %v", tt.name, took)
		}
		s.awaitFree(promise)
	}
	s.settled()
}

// brokenOff checks that an answer began and has no end.
func brokenOff(t *testing.T, c *call) {
	t.Helper()
	if c.status != 200 || c.err == nil || strings.Contains(c.text(), "[DONE]") {
		t.Errorf("not broken off: %s", c)
	}
}

// Row 14: a caller that doesn't read stops its own provider and nobody else, for write_idle; then it is cut off.
func TestSlowCaller(t *testing.T) {
	const writeIdle = 10 * time.Second
	p := startProvider(t, nil, nil)
	s := newSite(t, procs.SiteConfig{Adapters: "[" + adapter("work", p.url(), 32) + "]", Routes: "[{model: work, adapter: work, target: m}]",
		Edge: fmt.Sprintf("timers: {write_idle: %s}", writeIdle)})
	s.begin("a first request", "work", modeBulk).await(t, limit).whole(t)
	before := residentKiB(t, s.Edge) + residentKiB(t, s.Node)

	const slow = 8
	from := time.Now()
	for range slow {
		conn, err := net.Dial("tcp", s.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(chat("work", modeFlood))); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitOpen(slow, limit)
	var slowest time.Duration
	for range 20 {
		began := time.Now()
		s.begin("a request beside slow callers", "work", modeBulk).await(t, limit).whole(t)
		slowest = max(slowest, time.Since(began))
	}
	if open := p.state().Open; open != slow && time.Since(from) < writeIdle {
		t.Errorf("%d of %d slow callers are left before write_idle", open, slow)
	}
	grown := residentKiB(t, s.Edge) + residentKiB(t, s.Node) - before
	p.awaitOpen(0, writeIdle+promise)
	took := time.Since(from)
	t.Logf("beside %d slow callers: a megabyte in at most %v, %d KiB more memory; cut off after %v", slow, slowest.Round(time.Millisecond), grown, took.Round(time.Millisecond))
	if slowest > writeIdle/2 || grown > 64<<10 { // who waits for a slow caller waits for write_idle
		t.Error("slow callers cost others")
	}
	s.awaitFree(promise)
	said(t, s.Edge, "run ended", slow+21)
	ended := map[string]int{}
	for _, e := range s.Edge.Entries("run ended") {
		ended[e.Str("code")]++
	}
	if ended["client_slow"] != slow || ended["ok"] != 21 {
		t.Errorf("%d slow callers and 21 others, and the runs ended as %v", slow, ended)
	}
}

// residentKiB is how much memory a process has.
func residentKiB(t *testing.T, p *procs.Process) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(found(t, `VmRSS:\s+(\d+) kB`, string(status)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
