//go:build race

package transport

// raceDetector: it makes sync.Pool drop things at random, so allocations can't be counted.
const raceDetector = true
