package admission

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Protocol: a node that is always busy sees one open a second, whoever asks; RunEnded and news end that.
func TestSaturation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(oneNode("n", 4))
		busy := mustGrant(t, s, request("running"))
		busy.Sent()
		s.Saturated(busy.Place, busy.Generation) // or as many as seem free are granted before the first of them comes back
		var count atomic.Int64
		for i := range 20 {
			r := request(name("r", i))
			go func() {
				for {
					g, err := s.Acquire(t.Context(), r)
					if err != nil {
						return
					}
					count.Add(1)
					g.Sent()
					s.Saturated(g.Place, g.Generation)
					g.Rejected()
					r.Attempt++
				}
			}()
		}
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		opens := count.Load()
		if opens != 10 {
			t.Errorf("%d opens in 10 s, want one a second", opens)
		}
		s.Publish(oneNode("n", 4)) // says nothing new
		s.Publish(nodeOf("n", 1, adapterOf("a", 4), adapterOf("b", 0)))
		synctest.Wait()
		if count.Load() != opens || !s.Snapshot().Places[0].Saturated {
			t.Error("a snapshot that says nothing new of the adapter took the mark off")
		}
		end(t, s, busy)
		synctest.Wait()
		if n := count.Load() - opens; n < 1 || n > 4 { // as many as seem free, then the mark is back
			t.Errorf("%d opens after RunEnded, want one to four", n)
		}
		opens = count.Load()
		s.Publish(oneNode("n", 5))
		synctest.Wait()
		if count.Load() == opens {
			t.Error("news of the adapter didn't take the mark off")
		}
		s.Drain()
	})
}

// A saturated place is the last choice, and a newcomer doesn't take the grant of the second from one who waits.
func TestSaturatedIsLastChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		s.Publish(nodeOf("n1", 1, adapterOf("a", 9, "m")))
		s.Publish(nodeOf("n2", 1, adapterOf("a", 1)))
		s.Saturated(Place{"n1", "a"}, 1)
		time.Sleep(2 * time.Second)
		if g := mustGrant(t, s, request("r1")); g.Node != "n2" {
			t.Errorf("granted %v while another was unmarked", g.Place)
		}
		if g := mustGrant(t, s, request("r2")); g.Node != "n1" {
			t.Errorf("granted %v", g.Place)
		}
		w := begin(s, request("w"))
		time.Sleep(time.Second - 1)
		w.waits(t)
		late := begin(s, request("late"))
		time.Sleep(time.Nanosecond)
		w.granted(t)
		late.waits(t)
		time.Sleep(time.Second)
		late.granted(t)
		s.Saturated(Place{"n1", "a"}, 2)
		s.Saturated(Place{"n1", "b"}, 1)
		s.Saturated(Place{"n3", "a"}, 1)
		if got := s.Snapshot().Ignored.Stale; got != 3 {
			t.Errorf("%d stale marks counted, want 3", got)
		}
	})
}
