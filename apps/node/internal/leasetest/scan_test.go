package leasetest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	canarySize = 48
	// windowSize is the shortest piece of a canary that counts as one.
	windowSize = 8
	// maxRegion leaves out what isn't this program's memory: the race detector's shadow has terabytes.
	maxRegion = 512 << 20
)

// canary is a random secret that nobody has in clear: it is kept under the mask.
type canary struct {
	masked []byte
	pairs  [1 << 16]bool // the masked pairs of bytes that windows begin with
}

func newCanary() *canary {
	c := &canary{masked: make([]byte, canarySize)}
	_, _ = rand.Read(c.masked)
	for i, b := range c.masked {
		c.masked[i] = '0' + b%64 | mask
	}
	for i := range canarySize - windowSize + 1 {
		c.pairs[int(c.masked[i])<<8|int(c.masked[i+1])] = true
	}
	return c
}

// clear writes the secret in clear to b, which its caller clears.
func (c *canary) clear(b []byte) {
	for i, m := range c.masked {
		b[i] = m ^ mask
	}
}

// plain is the secret in new memory, for who takes it over.
func (c *canary) plain() []byte {
	b := make([]byte, canarySize)
	c.clear(b)
	return b
}

// found is how often something of a canary is in memory.
type found struct{ whole, windows int }

func (f *found) add(b []byte, c *canary) {
	for i := 0; i+windowSize <= len(b); i++ {
		if !c.pairs[int(b[i]^mask)<<8|int(b[i+1]^mask)] {
			continue
		}
		for at := range canarySize - windowSize + 1 {
			n := 0
			for n < canarySize-at && i+n < len(b) && b[i+n]^mask == c.masked[at+n] {
				n++
			}
			if n >= windowSize {
				f.windows++
			}
			if n == canarySize {
				f.whole++
			}
		}
	}
}

// scanner looks through this process's memory. What it reads, it reads into memory of its own that it leaves out.
type scanner struct {
	mem *os.File
	buf []byte
}

// newScanner skips the test where memory can't be looked at, or what is found there would mean nothing.
func newScanner(t *testing.T) *scanner {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector makes crypto/tls lose its buffers, and its own memory is large")
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skipf("this process's memory can't be read: %v", err)
	}
	buf, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = mem.Close()
		_ = unix.Munmap(buf)
	})
	return &scanner{mem, buf}
}

// look counts what of the canary is in memory.
func (s *scanner) look(t *testing.T, c *canary) (f found) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	var own, to uint64
	if _, err := fmt.Sscanf(fmt.Sprintf("%p", &s.buf[0]), "0x%x", &own); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		var from uint64
		var mode string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") || to-from > maxRegion {
			continue
		}
		if from <= own && own < to { // the kernel may have put it together with a neighbour
			s.region(from, own, c, &f)
			from = own + uint64(len(s.buf))
		}
		s.region(from, to, c, &f)
	}
	return f
}

func (s *scanner) region(from, to uint64, c *canary, f *found) {
	for at := from; at < to; {
		n, err := s.mem.ReadAt(s.buf[:min(uint64(len(s.buf)), to-at)], int64(at))
		if n == 0 || err != nil && n < canarySize {
			return // not to be read, as secret memory is
		}
		f.add(s.buf[:n], c)
		clear(s.buf[:n])
		// Pieces overlap, so that nothing is missed at their borders.
		if at += uint64(n); at < to {
			at -= canarySize
		}
	}
}

// wantNothing scans after two collections.
func (s *scanner) wantNothing(t *testing.T, when string, c *canary) {
	t.Helper()
	runtime.GC()
	runtime.GC()
	if f := s.look(t, c); f != (found{}) {
		t.Errorf("%s: %d whole copies in memory, %d pieces of %d bytes", when, f.whole, f.windows, windowSize)
	}
}

// The scan finds a copy that is there, whole or in part, and none that was cleared.
func TestTheScanFindsWhatIsThere(t *testing.T) {
	s, c := newScanner(t), newCanary()
	if f := s.look(t, c); f != (found{}) {
		t.Fatalf("found %+v of a secret that nobody has", f)
	}
	planted := c.plain()
	if f := s.look(t, c); f.whole == 0 || f.windows == 0 {
		t.Errorf("found %+v of a planted copy", f)
	}
	clear(planted[:20])
	clear(planted[20+windowSize:])
	if f := s.look(t, c); f.whole != 0 || f.windows == 0 {
		t.Errorf("found %+v of a piece of %d bytes", f, windowSize)
	}
	clear(planted)
	if f := s.look(t, c); f != (found{}) {
		t.Errorf("found %+v of a cleared copy", f)
	}
	runtime.KeepAlive(planted)
}
