package patience

import (
	"fmt"
	"testing"
)

// judge is a test that keeps what it is told.
type judge struct {
	testing.TB
	said string
}

func (j *judge) Helper() {}

func (j *judge) Errorf(format string, args ...any) { j.said = fmt.Sprintf(format, args...) }

// What others allocate for a while is no fault; what is there each time is.
func TestAllocations(t *testing.T) {
	var kept []byte
	for _, c := range []struct {
		name  string
		noisy int // calls beside which somebody else allocates
		own   bool
		want  string
	}{
		{"nothing", 0, false, ""},
		{"others, for a while", 40, false, ""},
		{"each time", 0, true, "2 allocations, at most 1 are enough"},
		{"others and each time", 40, true, "2 allocations, at most 1 are enough"},
	} {
		left, j := c.noisy, &judge{}
		Allocations(j, 1, 10, func() {
			if c.own {
				kept = make([]byte, 1<<10)
				kept = make([]byte, 1<<10)
			}
			for range 3 {
				if left > 0 {
					kept = make([]byte, 1<<10)
				}
			}
			left--
		})
		if j.said != c.want {
			t.Errorf("%s: %q", c.name, j.said)
		}
	}
	for size, told := range map[int]bool{1 << 10: false, 1 << 20: true} {
		j := &judge{}
		Allocated(j, 64<<10, func() { kept = make([]byte, size) })
		if (j.said != "") != told {
			t.Errorf("%d bytes: %q", size, j.said)
		}
	}
	_ = kept
}
