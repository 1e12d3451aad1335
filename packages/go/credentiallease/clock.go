package credentiallease

import "time"

// How a node follows the edge's clock.
const (
	// MaxRoundTrip is the longest exchange of heartbeats that tells the edge's time.
	MaxRoundTrip = 2 * time.Second
	// MaxSampleAge is how long the edge's time is known after an exchange.
	MaxSampleAge = 60 * time.Second
	// MaxWallJump is how far the node's wall clock may move against its own boot clock until it counts as a jump.
	MaxWallJump = 5 * time.Second
)

// Time is what a node knows of the edge's clock at one moment: it lies between Earliest and Latest, both in Unix
// milliseconds. Expiry is judged by Latest, not-before by Earliest, so that not knowing never lengthens a lease.
type Time struct {
	Earliest, Latest int64
	Synced           bool // false = not known; every lease is refused
}

// Reading is one look at the node's own clocks.
type Reading struct {
	Boot time.Duration // since the machine's start, time asleep included (CLOCK_BOOTTIME)
	Wall int64         // Unix milliseconds; only how far it moves is used, never what it says
}

// Clock derives the edge's time from exchanges of heartbeats. It reads no clock itself. The zero value isn't
// synchronized. Not safe for concurrent use.
type Clock struct {
	known bool
	edge  int64 // what the edge's clock showed in the exchange, no later than at
	trip  time.Duration
	at    Reading // when the answer was here
}

// Sample takes in one exchange: the node sent a heartbeat at sent, and received the edge's answer to it, written at
// edge's time edgeMS, at received. It reports whether the exchange was used; a slow one tells too little.
func (c *Clock) Sample(edgeMS int64, sent, received Reading) bool {
	trip := received.Boot - sent.Boot
	if edgeMS <= 0 || trip < 0 || trip > MaxRoundTrip {
		return false
	}
	c.known, c.edge, c.trip, c.at = true, edgeMS, trip, received
	return true
}

// Now returns the edge's time. It isn't known before the first exchange, when the last is too old, and when the wall
// clock jumped since: a jump means that the machine's clocks are being changed, and nothing is judged by them.
func (c *Clock) Now(r Reading) Time {
	elapsed := r.Boot - c.at.Boot
	jump := time.Duration(r.Wall-c.at.Wall)*time.Millisecond - elapsed
	if !c.known || elapsed < 0 || elapsed > MaxSampleAge || jump.Abs() > MaxWallJump {
		return Time{}
	}
	// Both ends are rounded outwards: the edge's milliseconds were cut off.
	return Time{
		Earliest: c.edge + elapsed.Milliseconds(),
		Latest:   c.edge + (elapsed + c.trip).Milliseconds() + 2,
		Synced:   true,
	}
}
