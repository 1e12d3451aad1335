package transport

import (
	"bytes"
	"testing"
)

// Whatever bytes a peer sends, and however they are cut: what the multiplexer is given is the beginning of them, in
// order, and no frame that fits the buffer is given by halves.
func FuzzInbound(f *testing.F) {
	whole := dataFrame(2, 100, 'a')
	f.Add(bytes.Repeat(whole, 5), uint16(7), uint16(4096))
	f.Add(dataFrame(2, 60000, 'b'), uint16(1000), uint16(100))
	f.Add(append(bytes.Clone(whole), 0, framePing, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1), uint16(5), uint16(12))
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 1, 2, 3}, uint16(1), uint16(1))
	f.Fuzz(func(t *testing.T, sent []byte, step, size uint16) {
		a, b := memPair(1 << 20)
		c := newConn(a, nil)
		defer c.Close()
		go func() { // ends with the bytes, or the connection
			for rest := sent; len(rest) > 0; {
				k := min(len(rest), int(step)+1)
				if _, err := b.Write(rest[:k]); err != nil {
					return
				}
				rest = rest[k:]
			}
			b.Close()
		}()
		var got []byte
		for p := make([]byte, int(size)+1); ; {
			n, err := c.Read(p)
			if n < 0 || n > len(p) {
				t.Fatalf("%d bytes into %d", n, len(p))
			}
			got = append(got, p[:n]...)
			if err != nil {
				break
			}
			if n == 0 {
				t.Fatal("nothing was read, and no error")
			}
		}
		if !bytes.HasPrefix(sent, got) {
			t.Fatal("what was read isn't what was sent")
		}
	})
}
