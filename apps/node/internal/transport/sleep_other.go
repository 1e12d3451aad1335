//go:build !linux

package transport

import "time"

// slept isn't known here; a link that died in the machine's sleep ends by its dead limit.
func slept() time.Duration { return 0 }

// boot is the time since the process's start here. It may stand still while the machine sleeps; the wall clock doesn't,
// and a difference between the two is noticed.
func boot(start time.Time) time.Duration { return time.Since(start) }
