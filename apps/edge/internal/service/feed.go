package service

import (
	"context"
	"sync"

	"iop/packages/go/execution"
)

// feed carries the events of a background run to the caller that follows it, if it still does. The run's driver never
// waits for it: a follower that is too far behind is let go.
type feed struct {
	sink EventSink // the follower's; called by the follower's goroutine

	wake chan struct{} // holds a token when there is something to take

	mu      sync.Mutex
	queue   []fed
	size    int      // of queue, in bytes
	gone    bool     // nobody follows
	outcome *Outcome // nil = not ended
}

// fed is one call of an EventSink.
type fed struct {
	seq   uint64 // 0 = Placed
	event execution.Event

	placed Placement
}

// maxBehind is how far a follower may be behind, in bytes.
const maxBehind = 4 << 20

func newFeed(sink EventSink) *feed { return &feed{sink: sink, wake: make(chan struct{}, 1)} }

// Placed implements EventSink; the driver calls it.
func (f *feed) Placed(at Placement) {
	f.put(fed{placed: at}, 0)
}

// Event implements EventSink; the driver calls it. It never fails: whoever leaves leaves the run alone.
func (f *feed) Event(seq uint64, e execution.Event) error {
	f.put(fed{seq: seq, event: e}, len(e.Text)+len(e.ToolCall.Arguments)+len(e.Model))
	return nil
}

func (f *feed) put(one fed, size int) {
	const overhead = 128
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return
	}
	if f.size += size + overhead; f.size > maxBehind {
		f.gone, f.queue = true, nil
	} else {
		f.queue = append(f.queue, one)
	}
	f.signalLocked()
}

// finish says that the run has ended; the driver calls it last.
func (f *feed) finish(o *Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outcome = o
	f.signalLocked()
}

func (f *feed) signalLocked() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// take returns what came since the last call.
func (f *feed) take() (queue []fed, o *Outcome, gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	queue, f.queue, f.size = f.queue, nil, 0
	return queue, f.outcome, f.gone
}

// leave says that nobody follows any more.
func (f *feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone, f.queue = true, nil
}

// follow passes on what the driver puts in, in the caller's goroutine, and returns the outcome, or nil when it stopped
// before there was one.
func (f *feed) follow(ctx context.Context) *Outcome {
	defer f.leave()
	for {
		queue, outcome, gone := f.take()
		for i := range queue {
			if ctx.Err() != nil || f.pass(&queue[i]) != nil {
				return nil
			}
		}
		switch {
		case outcome != nil && !gone:
			return outcome
		case gone:
			return nil
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *feed) pass(one *fed) error {
	if one.seq == 0 {
		f.sink.Placed(one.placed)
		return nil
	}
	return f.sink.Event(one.seq, one.event)
}
