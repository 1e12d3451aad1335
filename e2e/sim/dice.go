package sim

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// dice are the random numbers of one purpose. What one purpose draws changes nothing for the others, so that two
// goroutines that draw in either order draw the same.
type dice struct{ *rand.Rand }

// newDice returns the dice of a seed for a purpose, whose name is all of the words.
func newDice(seed uint64, words ...string) dice {
	h := hashOf(seed, words...)
	return dice{rand.New(rand.NewPCG(h, h*0x9e3779b97f4a7c15+1))}
}

// hashOf is one number for a seed and words.
func hashOf(seed uint64, words ...string) uint64 {
	h := fnv.New64a()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], seed)
	h.Write(b[:])
	for _, w := range words {
		h.Write([]byte(w))
		h.Write([]byte{0})
	}
	return mix(h.Sum64())
}

// mix scatters the bits of x.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// chance reports true in so many of a hundred cases.
func (d dice) chance(percent int) bool { return d.IntN(100) < percent }

// between returns a time from low to high, to the nanosecond, so that no two events share one.
func (d dice) between(low, high time.Duration) time.Duration {
	return low + time.Duration(d.Int64N(int64(high-low)+1))
}

// among returns a number from low to high.
func (d dice) among(low, high int) int { return low + d.IntN(high-low+1) }

// pick returns one of the list.
func pick[T any](d dice, list ...T) T { return list[d.IntN(len(list))] }
