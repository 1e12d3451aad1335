package service

import (
	"context"
	"fmt"
	"testing"

	"iop/packages/go/execution"
)

// A node that invents ends of background runs pushes out a part of what is remembered, and no more.
func TestHearsayIsBounded(t *testing.T) {
	const most = 40
	tb := newTable(most)
	live := func(id string) {
		t.Helper()
		r := New(Config{}).newRun(context.Background(), nil, 0, Outcome{RunID: id, Kind: execution.KindRun})
		r.job = &runJob{} // not one of an earlier process
		if f := tb.enter(r); f != nil {
			t.Fatal(f)
		}
		r.complete()
		tb.leave(r)
	}
	for i := range most {
		live(fmt.Sprint("own", i))
	}
	invent := func(prefix string) (taken int) {
		for i := range 10 * most {
			if tb.recover(RunView{RunID: fmt.Sprint(prefix, i)}) {
				taken++
			}
		}
		return taken
	}
	if n := invent("x"); n != most/hearsayShare {
		t.Errorf("%d invented runs are remembered of %d", n, most)
	}
	own := 0
	for i := range most {
		if _, e := tb.lookup(fmt.Sprint("own", i)); e != nil {
			own++
		}
	}
	if own != most-most/hearsayShare {
		t.Errorf("%d of %d are left of what happened", own, most)
	}
	for i := range most { // room for hearsay comes back as it is forgotten
		live(fmt.Sprint("later", i))
	}
	if n := invent("y"); n != most/hearsayShare {
		t.Errorf("%d are remembered later", n)
	}
}
