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
	counts  [execution.StepError + 1]atomic.Uint64
	reading sync.WaitGroup
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

// lateNames are the kinds as metrics show them.
var lateNames = [...]string{
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

func (l *late) snapshot() map[string]uint64 {
	m := make(map[string]uint64)
	for step := range l.counts {
		if n := l.counts[step].Load(); n > 0 {
			m[lateNames[step]] = n
		}
	}
	return m
}
