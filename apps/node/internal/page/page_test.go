package page

import (
	"bytes"
	"sync"
	"testing"
)

func TestPagesAreClearedAndKept(t *testing.T) {
	var p Pool
	defer p.Close()
	first := p.Take()
	if len(first.Bytes()) != Size || !bytes.Equal(first.Bytes(), make([]byte, Size)) {
		t.Fatal("a new page isn't Size zeros")
	}
	b := first.Bytes()
	copy(b, "sk-canary")
	first.Free()
	again := p.Take()
	if again != first && first.Kind() != Heap {
		t.Error("a free page isn't used again")
	}
	if !bytes.Equal(again.Bytes(), make([]byte, Size)) {
		t.Error("a page wasn't cleared")
	}
	again.Free()
}

func TestOnlySoManyPagesAreKept(t *testing.T) {
	var p Pool
	var out []*Page
	for range keep + 5 {
		out = append(out, p.Take())
	}
	for _, page := range out {
		page.Free()
	}
	better := 0
	for _, page := range out {
		if page.Kind() != Heap {
			better++
		}
	}
	if len(p.free) != min(keep, better) {
		t.Errorf("%d pages are kept of %d that aren't of the heap", len(p.free), better)
	}
	late := p.Take()
	p.Close()
	late.Free()
	if len(p.free) != 0 || late.b != nil {
		t.Error("pages are kept after Close")
	}
}

func TestManyAtOnce(t *testing.T) {
	var p Pool
	defer p.Close()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 200 {
				page := p.Take()
				page.Bytes()[0], page.Bytes()[Size-1] = byte(i), byte(i)
				if page.Bytes()[0] != byte(i) || page.Bytes()[Size-1] != byte(i) {
					t.Error("two have the same page")
				}
				page.Free()
			}
		})
	}
	all.Wait()
}

// What a crowd had to take from the heap isn't what everybody gets after it. (found by attack)
func TestPagesOfTheHeapAreNotKept(t *testing.T) {
	var p Pool
	defer p.Close()
	crowded := &Page{pool: &p, b: make([]byte, Size), kind: Heap}
	copy(crowded.b, "sk-canary")
	b := crowded.b
	crowded.Free()
	if len(p.free) != 0 || !bytes.Equal(b, make([]byte, Size)) {
		t.Error("a page of the heap is kept, or wasn't cleared")
	}
}
