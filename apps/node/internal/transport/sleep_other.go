//go:build !linux

package transport

import "time"

// slept isn't known here; a link that died in the machine's sleep ends by its dead limit.
func slept() time.Duration { return 0 }
