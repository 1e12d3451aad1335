package transport

import "sync"

// Sizes of the pooled buffers: a small one holds dozens of token frames, a big one two body frames.
const (
	smallBuffer = 8 << 10
	bigBuffer   = 32 << 10
)

// buffer is a slice that can be pooled without allocating.
type buffer struct{ b []byte }

// buffers pools the buffers of one link's streams: a stream holds one only while there is something in it, so that
// idle streams cost nothing. The zero value is ready.
type buffers struct {
	small, big sync.Pool
}

// get returns a buffer with room for n bytes. What is over the big size isn't pooled: only a response's head is.
func (p *buffers) get(n int) *buffer {
	pool, size := &p.small, smallBuffer
	switch {
	case n > bigBuffer:
		return &buffer{b: make([]byte, n)}
	case n > smallBuffer:
		pool, size = &p.big, bigBuffer
	}
	if b, ok := pool.Get().(*buffer); ok {
		return b
	}
	return &buffer{b: make([]byte, size)}
}

// put takes a buffer back; b may be nil.
func (p *buffers) put(b *buffer) {
	if b == nil {
		return
	}
	b.b = b.b[:cap(b.b)]
	switch len(b.b) {
	case smallBuffer:
		p.small.Put(b)
	case bigBuffer:
		p.big.Put(b)
	}
}
