// Package faultpoint names the places in both programs at which a simulation may interfere: beside each change of state,
// where a delay, the loss of a link or a crash finds what an orderly run never shows.
//
// It is handed in like any other collaborator, as a *Hooks that is nil in production: then a point costs one comparison.
// It must not decide what happens there, and the code around a point must not depend on it.
package faultpoint

// Point names a place. What stands behind the dash is what may be done there beside looking: wait (the goroutine may be
// held up), kill (the link may be cut), panic.
type Point string

// The points of a run at the edge; their id is the run's.
const (
	EdgeGranted  Point = "edge.granted"   // has a place, the fence is to be asked - wait, kill, panic
	EdgeFenced   Point = "edge.fenced"    // the place stands, the stream is to be opened - wait, kill, panic
	EdgeOpened   Point = "edge.opened"    // the stream is open, nothing is written - wait, kill, panic
	EdgeSent     Point = "edge.sent"      // the place counts as sent, the open is to be written - wait, kill, panic
	EdgeWritten  Point = "edge.written"   // open and body are written - wait, kill, panic
	EdgeTerminal Point = "edge.terminal"  // the node's last word was read and isn't acted on - wait, kill, panic
	EdgeSettle   Point = "edge.settle"    // the outcome is decided, the place is to be settled - wait, kill
	EdgeRunEnded Point = "edge.run_ended" // an end was read from control and frees no place yet - wait, kill
)

// The points of a node's connection at the edge; their id is the node's.
const (
	EdgeCommit Point = "edge.commit" // a registration is to be committed - wait, kill
	EdgeAccept Point = "edge.accept" // it is, and the node is to be told - wait, kill
	EdgeFence  Point = "edge.fence"  // out of the registry, its places are still held - wait
)

// The points of an execution at the node; their id is the run's. NodeReady's is the edge's address.
const (
	NodeAdmit    Point = "node.admit"    // an open was read, nothing is taken - wait, kill
	NodeAdmitted Point = "node.admitted" // it has a place - wait, kill
	NodeCall     Point = "node.call"     // the adapter is to be called - wait, kill, panic
	NodeReturned Point = "node.returned" // the adapter has returned - wait, kill, panic
	NodeSettle   Point = "node.settle"   // the place is free, the edge isn't told - wait, kill
	NodeTerminal Point = "node.terminal" // the edge was told, the terminal is to be written - wait, kill
	NodeReady    Point = "node.ready"    // Ready is to be said - wait, kill
)

// The points of a link; their id is the address of its other end.
const (
	LinkWrite     Point = "link.write"     // bytes are to be given to the connection - kill
	LinkTaken     Point = "link.taken"     // the connection has a frame of a work stream, and its writer isn't told - kill
	LinkHeartbeat Point = "link.heartbeat" // a heartbeat is to be written - wait, kill
)

// Hooks is who is asked at the points. Nil is nobody.
type Hooks struct {
	hit func(p Point, id string)
}

// New returns hooks that call hit at each point, in the goroutine that comes by, with no lock held. It may wait, and
// panic where the point permits.
func New(hit func(p Point, id string)) *Hooks { return &Hooks{hit: hit} }

// At is a point. Nothing happens there unless somebody wants it.
func (h *Hooks) At(p Point, id string) {
	if h != nil {
		h.hit(p, id)
	}
}

// Points are all of them.
func Points() []Point {
	return []Point{EdgeGranted, EdgeFenced, EdgeOpened, EdgeSent, EdgeWritten, EdgeTerminal, EdgeSettle,
		EdgeCommit, EdgeAccept, EdgeFence, EdgeRunEnded,
		NodeAdmit, NodeAdmitted, NodeCall, NodeReturned, NodeSettle, NodeTerminal, NodeReady,
		LinkWrite, LinkTaken, LinkHeartbeat}
}
