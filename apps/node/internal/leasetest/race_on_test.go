//go:build race

package leasetest

// raceEnabled says that the race detector is on. It makes sync.Pool forget what it is given, now and then, on purpose.
const raceEnabled = true
