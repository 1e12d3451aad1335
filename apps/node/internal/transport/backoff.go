package transport

import "time"

// refusalClass is how a node takes a refusal.
type refusalClass uint8

const (
	retryable     refusalClass = iota // it may pass by itself
	configuration                     // somebody switched the node off, and may switch it on
	permanent                         // only a person can cure it
)

const (
	// configurationStart is the first wait of a node that is switched off; it doubles up to the permanent one.
	configurationStart = 30 * time.Second
	// maxRetryAfter bounds what an edge may ask for.
	maxRetryAfter = time.Hour
)

// backoff says how long to wait before the next dial. Every wait is random, so that nodes that lost their edge in the
// same moment don't come back in the same moment. Owned by Link.Run.
type backoff struct {
	start, max, permanent time.Duration
	random                func() float64 // in [0, 1)

	tries    int // since the last stable link
	disabled int // refusals of the class configuration in a row
}

// next is full jitter: anything up to a bound that doubles.
func (b *backoff) next() time.Duration {
	bound := doubled(b.start, b.tries, b.max)
	b.tries++
	return time.Duration(b.random() * float64(bound))
}

// refused returns the wait after a refusal. What the edge asks for is a lower bound, with a little on top: it tells
// all its nodes the same.
func (b *backoff) refused(class refusalClass, retryAfter time.Duration) time.Duration {
	asked := time.Duration(0)
	if retryAfter > 0 {
		asked = min(retryAfter, maxRetryAfter) + time.Duration(b.random()*float64(b.start))
	}
	switch class {
	case permanent:
		return max(asked, b.almost(b.permanent))
	case configuration:
		b.disabled++
		return max(asked, b.almost(doubled(min(configurationStart, b.permanent), b.disabled-1, b.permanent)))
	}
	return max(asked, b.next())
}

// registered forgets the refusals; the tries stay until the link was stable.
func (b *backoff) registered() { b.disabled = 0 }

// stable says that a link lived long enough.
func (b *backoff) stable() { b.tries = 0 }

// almost is nine to ten tenths of d.
func (b *backoff) almost(d time.Duration) time.Duration {
	return time.Duration((0.9 + 0.1*b.random()) * float64(d))
}

// doubled is d doubled n times, at most limit.
func doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}
