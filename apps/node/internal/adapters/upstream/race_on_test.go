//go:build race

package upstream

// racing is true under the race detector, where a sync.Pool forgets at random.
const racing = true
