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

// inbound is the read buffer; owned by the multiplexer's receive loop. It gives out whole frames: the multiplexer reads
// the body of one with its stream locked, and a link that goes silent in the middle would hold whoever reads that stream
// until the link is found dead, whatever became of the run; no deadline wakes him. The zero value stands before the first
// frame.
type inbound struct {
	buf   []byte
	r, w  int
	whole int    // of buf[r:w]: may be given out
	left  uint32 // still to come of a frame that is longer than buf, which is given out as it comes
}

// room returns where to read into; nothing that may be given out is left.
func (in *inbound) room() []byte {
	if in.buf == nil {
		in.buf = make([]byte, readBuffer)
	}
	if in.r > 0 {
		in.r, in.w = 0, copy(in.buf, in.buf[in.r:in.w])
	}
	return in.buf[in.w:]
}

// took looks at n more bytes that were read.
func (in *inbound) took(n int) error {
	in.w += n
	for {
		rest := in.buf[in.r+in.whole : in.w]
		if in.left > 0 {
			k := min(int64(in.left), int64(len(rest)))
			in.left -= uint32(k)
			in.whole += int(k)
			rest = rest[k:]
		}
		if in.left > 0 || len(rest) < headerLen {
			return nil
		}
		var body uint32
		switch rest[1] {
		case frameData:
			body = binary.BigEndian.Uint32(rest[8:])
		case framePing:
			return errPing
		}
		switch {
		case int64(body) > int64(len(in.buf)-headerLen):
			in.left = body
			in.whole += headerLen
		case len(rest) < headerLen+int(body):
			return nil
		default:
			in.whole += headerLen + int(body)
		}
	}
}

// give copies what may be given out.
func (in *inbound) give(p []byte) int {
	n := copy(p, in.buf[in.r:in.r+in.whole])
	in.r += n
	in.whole -= n
	return n
}
