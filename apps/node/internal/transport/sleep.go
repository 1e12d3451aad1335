package transport

import (
	"time"

	"iop/packages/go/transport"
)

// sleepGap is a wake-up: the machine was asleep for longer than this between two looks.
const sleepGap = 5 * time.Second

// sleepWatch notices that the machine was asleep: the connection is dead then, and the other side may not know.
type sleepWatch struct {
	slept func() time.Duration
	last  time.Duration
	tick  *time.Ticker
}

func newSleepWatch(slept func() time.Duration, every time.Duration) *sleepWatch {
	return &sleepWatch{slept: slept, last: slept(), tick: time.NewTicker(every)}
}

// woke is called at each tick.
func (w *sleepWatch) woke() bool {
	now := w.slept()
	gap := now - w.last
	w.last = now
	return gap > sleepGap
}

func (w *sleepWatch) stop() { w.tick.Stop() }

// newClocks returns what reads this machine's clocks.
func newClocks() func() transport.ClockReading {
	start := time.Now()
	return func() transport.ClockReading {
		return transport.ClockReading{Boot: boot(start), Wall: time.Now().UnixMilli()}
	}
}
