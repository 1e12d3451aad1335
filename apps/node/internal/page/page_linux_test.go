package page

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"testing"
	"unsafe"
)

// Where the kernel has memfd_secret, a page can't be read through /proc, whoever asks.
func TestSecretPagesAreNotShown(t *testing.T) {
	var p Pool
	defer p.Close()
	page := p.Take()
	defer page.Free()
	if page.Kind() != Secret {
		t.Skipf("pages are %v here", page.Kind())
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skip(err)
	}
	defer mem.Close()
	copy(page.Bytes(), "sk-canary")
	at := int64(uintptr(unsafe.Pointer(unsafe.SliceData(page.Bytes()))))
	if n, err := mem.ReadAt(make([]byte, 16), at); err == nil || n > 0 {
		t.Errorf("%d bytes of the page were read", n)
	}
	runtime.KeepAlive(page)
}

// What stands in for secret memory is locked, left out of core dumps, and empty in a child.
func TestLockedPagesAreLocked(t *testing.T) {
	b := locked()
	maps, err := os.ReadFile("/proc/self/smaps")
	if b == nil || err != nil {
		t.Skipf("no locked memory here (%v)", err)
	}
	defer unmap(b)
	at := strconv.FormatUint(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), 16)
	i := bytes.Index(maps, []byte("\n"+at+"-"))
	if i < 0 {
		t.Skip("the kernel put the page together with a neighbour")
	}
	flags := maps[i+bytes.Index(maps[i:], []byte("VmFlags:")):]
	flags = flags[:bytes.IndexByte(flags, '\n')]
	for _, f := range []string{" lo", " dd", " wf"} { // locked, not dumped, wiped on fork
		if !bytes.Contains(flags, []byte(f)) {
			t.Errorf("flag%s is missing: %s", f, flags)
		}
	}
}
