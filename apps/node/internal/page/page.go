// Package page owns the memory in which a secret is in the clear while it is written: pages outside of Go's heap that
// the kernel shows to nobody, as far as it can. It knows nothing of leases, and it reads no secret.
//
// On Linux a page is memfd_secret(2) memory, which isn't in the kernel's own map and which /proc/PID/mem doesn't show to
// root either; where that isn't to be had, it is memory that is locked (never swapped), left out of core dumps and
// empty in a child. Elsewhere, and where a limit on locked memory is reached, it is a piece of the heap.
package page

import "sync"

// Size is the length of a page in bytes: it holds every secret that a lease can carry.
const Size = 4096

// keep is how many free pages are kept; what more there were at once is given back to the system.
const keep = 64

// Kind says what a page is made of.
type Kind uint8

// The kinds, the best one last.
const (
	Heap   Kind = iota // of the process's ordinary memory
	Locked             // never swapped, not in core dumps
	Secret             // nor to be read through /proc or by the kernel
)

// String names the kind in logs.
func (k Kind) String() string {
	switch k {
	case Secret:
		return "memfd_secret"
	case Locked:
		return "locked"
	}
	return "heap"
}

// Page is one page. Whoever took it owns it until Free.
type Page struct {
	pool *Pool
	b    []byte
	kind Kind
}

// Bytes is the page's memory, Size bytes. It must not be kept after Free.
func (p *Page) Bytes() []byte { return p.b }

// Kind says what it is made of.
func (p *Page) Kind() Kind { return p.kind }

// Free clears the page and gives it back. It is called once.
func (p *Page) Free() {
	clear(p.b)
	if p.pool.put(p) {
		return
	}
	p.unmap()
}

func (p *Page) unmap() {
	if p.kind != Heap {
		unmap(p.b)
	}
	p.b = nil
}

// Pool hands out pages and keeps a limited number of free ones. The zero value is empty and usable. Its methods may be
// called concurrently.
type Pool struct {
	mu     sync.Mutex
	free   []*Page
	closed bool
}

// Take returns a cleared page; it never waits and never fails.
func (p *Pool) Take() *Page {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		page := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return page
	}
	p.mu.Unlock()
	b, kind := allocate()
	if kind == Heap {
		b = make([]byte, Size)
	}
	return &Page{pool: p, b: b, kind: kind}
}

// put keeps a page, unless there are enough or nobody will take one any more. One of the heap is never kept: it was the
// best that there was in a moment when many were out, and the next may be better.
func (p *Pool) put(page *Page) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.free) >= keep || page.kind == Heap {
		return false
	}
	p.free = append(p.free, page)
	return true
}

// Close gives the free pages back to the system. Pages that are out are given back when they are freed.
func (p *Pool) Close() {
	p.mu.Lock()
	free := p.free
	p.free, p.closed = nil, true
	p.mu.Unlock()
	for _, page := range free {
		page.unmap()
	}
}
