package credentiallease

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// maskOf keeps a value out of memory while it is looked for: the test has it under this mask only.
const maskOf = 0x80

// maxRegion leaves out what isn't this program's memory: the race detector's shadow has terabytes.
const maxRegion = 512 << 20

// copiesInMemory counts where the masked value is in this process's memory, in clear. What was read to be looked at
// doesn't count.
func copiesInMemory(t *testing.T, masked []byte) (found int) {
	t.Helper()
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skip("no /proc/self/mem: ", err)
	}
	defer func() { _ = mem.Close() }()
	maps, err := os.ReadFile("/proc/self/maps")
	check(t, err)
	scan := make([]byte, 256<<10)
	own := fmt.Sprintf("%p", &scan[0])
	var first uint64
	_, err = fmt.Sscanf(own, "0x%x", &first)
	check(t, err)
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		var from, to uint64
		var mode string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") || to-from > maxRegion {
			continue
		}
		for at := from; at < to; {
			n, err := mem.ReadAt(scan[:min(uint64(len(scan)), to-at)], int64(at))
			if err != nil && n == 0 {
				break
			}
			for _, i := range findMasked(scan[:n], masked) {
				if where := at + uint64(i); where < first || where >= first+uint64(len(scan)) {
					found++
				}
			}
			clear(scan[:n])
			// Pieces overlap, so that nothing is missed at their borders.
			if at += uint64(n); at < to {
				at -= uint64(len(masked))
			}
		}
	}
	return found
}

// findMasked returns where in b the value is in clear.
func findMasked(b, masked []byte) (at []int) {
	for i := 0; ; i++ {
		next := bytes.IndexByte(b[i:], masked[0]^maskOf)
		if i += next; next < 0 || i+len(masked) > len(b) {
			return at
		}
		if isMasked(b[i:], masked) {
			at = append(at, i)
		}
	}
}

func isMasked(b, masked []byte) bool {
	for i, c := range masked {
		if b[i]^maskOf != c {
			return false
		}
	}
	return true
}

// maskedSecret is a random secret that nobody has in clear yet.
func maskedSecret() []byte {
	masked := make([]byte, 48)
	_, _ = rand.Read(masked)
	for i, c := range masked {
		masked[i] = '0' + c%64 | maskOf
	}
	return masked
}

func unmask(masked []byte) []byte {
	b := bytes.Clone(masked)
	for i := range b {
		b[i] ^= maskOf
	}
	return b
}

// L11: after a lease was issued, sent and its secret zeroed, the secret is nowhere in this process, without waiting for
// a collection. The scan finds a copy that is there.
func TestNothingIsLeftInMemory(t *testing.T) {
	w := newWorld(t)
	page, now := make([]byte, MaxSecret), func() Time { return w.now }
	for range 3 {
		masked := maskedSecret()
		planted := unmask(masked)
		if copiesInMemory(t, masked) == 0 {
			t.Fatal("the scan doesn't find a copy that is there")
		}
		var err error
		w.secret, err = NewSecret(planted)
		check(t, err)
		h := w.ready(t, w.issue(t))
		w.secret.Zero()
		if n := copiesInMemory(t, masked); n != 0 {
			t.Errorf("%d copies after the lease was issued", n)
		}
		check(t, h.Redeem(page, now, func(secret []byte) error {
			if !isMasked(secret, masked) {
				t.Error("another secret was sent")
			}
			return nil
		}))
		h.End()
		if n := copiesInMemory(t, masked); n != 0 {
			t.Errorf("%d copies after the secret was sent", n)
		}
		runtime.KeepAlive(h)
	}
}
