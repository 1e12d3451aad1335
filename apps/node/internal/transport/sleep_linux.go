package transport

import (
	"time"

	"golang.org/x/sys/unix"
)

// slept returns how long this machine has been asleep since it started: what its clock that counts sleep is ahead of
// the one that doesn't. Wall time has no part in it.
func slept() time.Duration {
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}

// boot returns the clock that counts since the machine's start, sleep included.
func boot(time.Time) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // there since Linux 2.6.39
	return time.Duration(t.Nano())
}
