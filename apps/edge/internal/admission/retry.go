package admission

import (
	"math"
	"time"

	"iop/packages/go/execution"
)

const (
	endingsWindow  = 5 * time.Minute
	endingsSlot    = 10 * time.Second
	endingsSlots   = int(endingsWindow / endingsSlot)
	retryUnknown   = 30 * time.Second
	retryMax       = 300 * time.Second
	retryLeast     = time.Second
	secondsAtLeast = 1.0 // no rate is taken over less
)

// endings counts the executions of a set that ended within the last five minutes (give or take a slot of ten seconds).
type endings struct {
	began time.Time // when the set was first asked for
	slots [endingsSlots]uint32
	last  int64 // number of the newest slot, counted from began
}

func (e *endings) add(now time.Time) {
	e.advance(now)
	e.slots[e.last%int64(endingsSlots)]++
}

// count returns how many ended within the window.
func (e *endings) count(now time.Time) int {
	e.advance(now)
	n := 0
	for _, c := range e.slots {
		n += int(c)
	}
	return n
}

// advance empties the slots that time has left behind.
func (e *endings) advance(now time.Time) {
	slot := int64(now.Sub(e.began) / endingsSlot)
	if slot-e.last >= int64(endingsSlots) {
		clear(e.slots[:])
		e.last = slot
	}
	for e.last < slot {
		e.last++
		e.slots[e.last%int64(endingsSlots)] = 0
	}
}

// retryAfter is when somebody who would now stand at position may expect a place.
func (e *endings) retryAfter(position int, now time.Time) time.Duration {
	ended := e.count(now)
	if ended == 0 {
		return retryUnknown
	}
	oldest := max(0, e.last-int64(endingsSlots)+1) // the slots reach back to its beginning
	seconds := max((now.Sub(e.began) - time.Duration(oldest)*endingsSlot).Seconds(), secondsAtLeast)
	wait := math.Ceil(float64(position) * seconds / float64(ended))
	return time.Duration(min(max(wait, retryLeast.Seconds()), retryMax.Seconds())) * time.Second
}

// refusal says no, and when to ask again: position is where the caller would then stand, at the end of the queue. The
// set may be nil, which is one of which nothing is known.
func (set *candidateSet) refusal(code execution.Code, position int, now time.Time) *execution.Failure {
	f := &execution.Failure{Code: code, Origin: execution.OriginEdge, RetryAfter: retryUnknown, NothingSent: true}
	if set != nil {
		f.RetryAfter = set.endings.retryAfter(position, now)
	}
	switch code {
	case execution.CodeQueueFull:
		f.Text = "all places are taken and the queue is full; ask again later"
	case execution.CodeQueueTimeout:
		f.Text = "no place became free in time; ask again later"
	case execution.CodeNoNode:
		f.Text = "no node that can do this is ready; ask again later"
	case execution.CodeEdgeDraining:
		f.Text = "this edge takes no new work; ask another one, or again later"
	}
	return f
}
