package events

import (
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "iop/proto/iop"
)

func publishN(b *Bus, n int) {
	for i := range n {
		b.Publish(Event{Kind: KindReady, Generation: uint64(i + 1)})
	}
}

func drain(s *Subscription) []Event {
	var got []Event
	for {
		select {
		case e, ok := <-s.C:
			if !ok {
				return got
			}
			got = append(got, e)
		default:
			return got
		}
	}
}

func TestOrderAndFanOut(t *testing.T) {
	b := NewBus()
	b.Publish(Event{Kind: KindFenced}) // before anybody subscribed
	one, two := b.Subscribe(8), b.Subscribe(8)
	publishN(b, 3)
	at := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	b.Publish(Event{At: at, Kind: KindClone, NodeID: "n", Adapter: "a", RunID: "r", Code: "c", Text: "t"})
	for _, s := range []*Subscription{one, two} {
		got := drain(s)
		if len(got) != 4 || s.Dropped() != 0 {
			t.Fatalf("%+v, dropped %d", got, s.Dropped())
		}
		for i, e := range got[:3] {
			if e.Generation != uint64(i+1) || e.At.IsZero() || e.Gap != 0 {
				t.Errorf("event %d: %+v", i, e)
			}
		}
		if got[3] != (Event{ID: 5, At: at, Kind: KindClone, NodeID: "n", Adapter: "a", RunID: "r", Code: "c", Text: "t"}) {
			t.Errorf("%+v", got[3])
		}
	}
}

// EV-02, fault 50: who is slow loses events, is told how many and where, and slows nobody.
func TestSlowSubscriberIsTold(t *testing.T) {
	b := NewBus()
	slow, fast := b.Subscribe(2), b.Subscribe(100)
	publishN(b, 10)
	first := drain(slow)
	publishN(b, 1)
	second := drain(slow)
	if len(first) != 2 || first[0].Gap != 0 || len(second) != 1 || second[0].Gap != 8 || slow.Dropped() != 8 {
		t.Errorf("%+v then %+v, dropped %d", first, second, slow.Dropped())
	}
	publishN(b, 1)
	if e := <-slow.C; e.Gap != 0 {
		t.Errorf("the gap is told twice: %+v", e)
	}
	if got := drain(fast); len(got) != 12 || fast.Dropped() != 0 {
		t.Errorf("the fast one got %d and lost %d", len(got), fast.Dropped())
	}
}

// EV-02: one a second against 5000 a second for 20 s; received + dropped = published.
func TestDropCountIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBus()
		s := b.Subscribe(16)
		received, gaps := uint64(0), uint64(0)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for e := range s.C {
				received++
				gaps += e.Gap
				time.Sleep(time.Second)
			}
		}()
		const published = 20 * 5000
		for range published {
			b.Publish(Event{Kind: KindReady})
			time.Sleep(200 * time.Microsecond)
		}
		s.Close()
		dropped := s.Dropped()
		<-done
		if received+dropped != published || s.Dropped() != dropped || gaps > dropped {
			t.Errorf("received %d + dropped %d, want %d; gaps %d", received, dropped, published, gaps)
		}
	})
}

// EV-01: a subscriber that publishes in its loop, and one that stops reading and leaves, hold nobody up.
func TestSubscribersMayPublishAndLeave(t *testing.T) {
	const rounds = 1000
	b := NewBus()
	loud := b.Subscribe(4)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range loud.C {
			if e.Kind != KindReady {
				continue
			}
			for range 100 {
				b.Publish(Event{Kind: KindDraining})
			}
			if e.Generation == rounds {
				loud.Close() // in its own loop
			}
		}
	}()
	for i := range rounds {
		deaf := b.Subscribe(1)
		publishN(b, 3) // for ever, if they waited for somebody to read
		deaf.Close()
		if got := len(drain(deaf)); uint64(got)+deaf.Dropped() < 3 {
			t.Fatalf("round %d: %d received, %d dropped of at least 3", i, got, deaf.Dropped())
		}
	}
	for open := true; open; {
		b.Publish(Event{Kind: KindReady, Generation: rounds}) // until it found room
		select {
		case <-done:
			open = false
		default:
		}
	}
}

func TestCloseTwiceAndPublishAfter(t *testing.T) {
	b := NewBus()
	s := b.Subscribe(0) // room for one at least
	publishN(b, 1)
	s.Close()
	s.Close()
	publishN(b, 1)
	if got := drain(s); len(got) != 1 || s.Dropped() != 0 {
		t.Errorf("%+v, dropped %d: want what was buffered, and nothing after the close", got, s.Dropped())
	}
	if _, ok := <-s.C; ok {
		t.Error("the channel isn't closed")
	}
}

// Many publish and come and go at once: run with -race. Those who stay see the same order.
func TestConcurrentUse(t *testing.T) {
	b := NewBus()
	const publishers, each = 4, 500
	stay := []*Subscription{b.Subscribe(publishers * each), b.Subscribe(publishers * each)}
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for i := range each {
				b.Publish(Event{Kind: KindReady, Generation: uint64(p*each + i)})
				if i%50 == 0 {
					s := b.Subscribe(1)
					defer s.Close()
				}
			}
		})
	}
	wg.Wait()
	one, two := drain(stay[0]), drain(stay[1])
	if len(one) != publishers*each || len(two) != len(one) {
		t.Fatalf("%d and %d received", len(one), len(two))
	}
	for i := range one {
		if one[i] != two[i] {
			t.Fatalf("event %d differs: %+v, %+v", i, one[i], two[i])
		}
	}
}

// A node's event is passed on by its number, so both lists must agree.
func TestKindsAreTheWires(t *testing.T) {
	for number, wire := range pb.EventKind_name {
		if number == 0 {
			continue
		}
		want := strings.ToLower(strings.TrimPrefix(wire, "EVENT_KIND_"))
		if got := Kind(number).String(); got != want {
			t.Errorf("kind %d is %q here and %q on the wire", number, got, want)
		}
	}
	docs, err := os.ReadFile("../../../../docs/ctl.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for number := range 256 {
		k := Kind(number)
		name := k.String()
		if name == "unknown" {
			continue
		}
		if _, wire := pb.EventKind_name[int32(number)]; wire != (number < 32) || seen[name] {
			t.Errorf("kind %d (%s) has a number of the others, or another's name", number, name)
		}
		seen[name] = true
		if !strings.Contains(string(docs), "`"+name+"`") {
			t.Errorf("docs/ctl.md lacks %s", name)
		}
		if parsed, ok := ParseKind(name); !ok || parsed != k || k.Run() != strings.HasPrefix(name, "run_") {
			t.Errorf("kind %d: %s is read as %d, run %v", number, name, parsed, k.Run())
		}
	}
	for _, name := range []string{"", "unknown", "run", "Ready"} {
		if k, ok := ParseKind(name); ok {
			t.Errorf("%q is read as %v", name, k)
		}
	}
}
