package service

import (
	"sync"
	"sync/atomic"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
)

// late reads what nodes still say of attempts that are over, aside from the drivers, and counts it by kind.
type late struct {
	counts  frames
	reading sync.WaitGroup
}

// frames are counts by kind.
type frames [execution.StepError + 1]atomic.Uint64

// add takes what one attempt has counted: the driver of a fast stream mustn't share a counter with all others.
func (f *frames) add(own *[execution.StepError + 1]uint32) {
	for step, n := range own {
		if n > 0 {
			f[step].Add(uint64(n))
		}
	}
}

// follow closes a stream whose run was cancelled and reads on until the node closed it too, or the reaper has reset
// it. A cancel may overtake its open; the node then refuses the open, and nothing but that refusal frees the place.
func (l *late) follow(s *transport.Stream, kind execution.Kind, g *admission.Grant) {
	s.Close()
	s.Linger()
	l.reading.Go(func() {
		defer s.Release()
		for {
			m, err := read(s, kind)
			if err != nil {
				return
			}
			l.counts[m.step].Add(1)
			if m.step == execution.StepRejected {
				g.Rejected()
			}
		}
	})
}

// glance counts what is already there behind a terminal, the last that is read from this stream. It never waits.
func (l *late) glance(s *transport.Stream, kind execution.Kind) {
	defer s.Release()
	for s.Buffered() {
		m, err := read(s, kind)
		if err != nil {
			return
		}
		l.counts[m.step].Add(1)
	}
}

// stepNames are the kinds as metrics show them.
var stepNames = [...]string{
	0:                       "unknown",
	execution.StepAccepted:  "accepted",
	execution.StepRejected:  "rejected",
	execution.StepHead:      "head",
	execution.StepBody:      "body",
	execution.StepUsage:     "usage",
	execution.StepMetadata:  "metadata",
	execution.StepEnd:       "end",
	execution.StepStart:     "start",
	execution.StepDelta:     "delta",
	execution.StepComplete:  "complete",
	execution.StepCancelled: "cancelled",
	execution.StepError:     "error",
}

func (f *frames) snapshot() map[string]uint64 {
	m := make(map[string]uint64)
	for step := range f {
		if n := f[step].Load(); n > 0 {
			m[stepNames[step]] = n
		}
	}
	return m
}
