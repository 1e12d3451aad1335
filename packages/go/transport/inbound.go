package transport

import (
	"encoding/binary"
	"errors"
)

// framePing is a frame by which a multiplexer asks another whether it lives.
const framePing = 2

// errPing is why a conn fails whose peer sends pings. Neither side of the protocol does (heartbeats are ours), and the
// multiplexer takes a goroutine for each: 6 MB of pings made 100,000 goroutines.
var errPing = errors.New("the peer sends pings of the multiplexer, which the protocol doesn't use")

// frameWatch follows the frames in what the multiplexer is given to read. The zero value stands before the first one.
type frameWatch struct {
	head  [headerLen]byte
	headN int
	left  uint32 // body bytes still to come
}

// take looks at the next bytes.
func (w *frameWatch) take(p []byte) error {
	for len(p) > 0 {
		if w.left > 0 {
			n := min(int64(w.left), int64(len(p)))
			w.left -= uint32(n)
			p = p[n:]
			continue
		}
		n := copy(w.head[w.headN:], p)
		w.headN += n
		p = p[n:]
		if w.headN < headerLen {
			return nil
		}
		w.headN = 0
		switch w.head[1] {
		case frameData:
			w.left = binary.BigEndian.Uint32(w.head[8:])
		case framePing:
			return errPing
		}
	}
	return nil
}
