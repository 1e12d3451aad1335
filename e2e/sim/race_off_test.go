//go:build !race

package sim

// raceDetector reports whether this is a build for the race detector.
const raceDetector = false
