package config

import (
	"fmt"
	"strings"
)

const (
	// A stream whose reader is slow holds a whole window of 1 MiB in a buffer that doubled.
	streamMemory = 2 << 20
	// A caller's connection costs its request head as it is read, the buffers of net/http, and a stack.
	connectionMemory = 24 << 10
	// A request that runs or waits costs its head as it is parsed, a stack that has grown, and a run's state.
	callerMemory = 24 << 10
	// A connection that hasn't registered may hold one frame of 16 KiB, beside its buffers and stacks.
	handshakeMemory = 48 << 10
)

// MemoryBound is what the configured limits let the Edge hold at most, in bytes. It is a bound for planning, not a
// forecast: most streams are fast and most bodies small.
type MemoryBound struct {
	Places     int   // executions at once, the sum of max_concurrency over the adapters of enabled nodes
	Waiting    int   // callers in queues: the sum of the routes' depths, and RunQueueDepth for each adapter's name
	Streams    int64 // answers whose callers are slow
	Bodies     int64 // request bodies; those in files count too
	Callers    int64 // requests, running and waiting
	Open       int64 // connections of callers
	Handshakes int64 // node connections that haven't registered

	unregistered, connections, slow int
}

// RunQueueDepth is how many runs may wait for the adapters of one name, where no route leads them.
const RunQueueDepth = 64

// MemoryBound computes what the limits imply.
func (e *Edge) MemoryBound() MemoryBound {
	b := MemoryBound{Bodies: e.Limits.BodyMemory, unregistered: e.Limits.Unregistered, connections: e.Limits.Connections,
		slow: e.Limits.SlowAnswers}
	adapters := map[string]bool{}
	for i := range e.Nodes {
		if !e.Nodes[i].Enabled {
			continue
		}
		for j := range e.Nodes[i].Adapters {
			b.Places += e.Nodes[i].Adapters[j].MaxConcurrency
			adapters[e.Nodes[i].Adapters[j].Name] = true
		}
	}
	for i := range e.Routes {
		b.Waiting += e.Routes[i].Queue.Depth
	}
	b.Waiting += RunQueueDepth * len(adapters)
	b.Streams = int64(b.Places+b.slow) * streamMemory
	b.Callers = int64(b.Places+b.Waiting) * (callerMemory + e.Limits.Header)
	b.Open = int64(b.connections) * (connectionMemory + e.Limits.Header)
	b.Handshakes = int64(b.unregistered) * handshakeMemory
	return b
}

// Total returns the sum.
func (b MemoryBound) Total() int64 { return b.Streams + b.Bodies + b.Callers + b.Open + b.Handshakes }

// String is a small table for people, without a line break at its end.
func (b MemoryBound) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "memory bound: %s\n", mib(b.Total()))
	fmt.Fprintf(&s, "  %10s  streams: %d places and %d slow answers x %s\n", mib(b.Streams), b.Places, b.slow, mib(streamMemory))
	fmt.Fprintf(&s, "  %10s  request bodies: limits.body_memory\n", mib(b.Bodies))
	fmt.Fprintf(&s, "  %10s  callers: %d running, %d waiting\n", mib(b.Callers), b.Places, b.Waiting)
	fmt.Fprintf(&s, "  %10s  connections of callers: %d\n", mib(b.Open), b.connections)
	fmt.Fprintf(&s, "  %10s  handshakes: %d unregistered connections", mib(b.Handshakes), b.unregistered)
	return s.String()
}

// mib shows bytes in MiB, rounded up.
func mib(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }
