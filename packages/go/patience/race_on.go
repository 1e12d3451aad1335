//go:build race

package patience

// raceDetector reports whether this is a build for the race detector.
const raceDetector = true
