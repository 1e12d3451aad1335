package credentiallease

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func reading(boot time.Duration, wall int64) Reading { return Reading{Boot: boot, Wall: wall} }

// A7: only an exchange of at most two seconds tells the time, and for 60 seconds.
func TestClock(t *testing.T) {
	var c Clock
	if c.Now(reading(0, 0)).Synced {
		t.Error("synchronized without an exchange")
	}
	if c.Sample(edgeTime, reading(0, 0), reading(MaxRoundTrip+1, 2000)) || c.Sample(edgeTime, reading(time.Second, 0), reading(0, 0)) ||
		c.Sample(0, reading(0, 0), reading(0, 0)) || c.Now(reading(0, 0)).Synced {
		t.Error("a useless exchange is used")
	}
	if !c.Sample(edgeTime, reading(10*time.Second, 500), reading(12*time.Second, 2500)) {
		t.Fatal("an exchange of two seconds isn't used")
	}
	if got := c.Now(reading(13*time.Second, 3500)); got != (Time{edgeTime + 1000, edgeTime + 3002, true}) {
		t.Errorf("time %+v", got)
	}
	if !c.Now(reading(72*time.Second, 62_500)).Synced || c.Now(reading(72*time.Second+1, 62_500)).Synced {
		t.Error("an exchange counts for 60 seconds")
	}
	if c.Now(reading(11*time.Second, 1500)).Synced {
		t.Error("the boot clock went back")
	}
}

// CR-13, row 43: a wall clock that is constantly wrong doesn't matter, one that jumps does until the next exchange.
func TestClockJumps(t *testing.T) {
	for _, wrong := range []int64{-600_000, -20_000, 0, 20_000, 600_000} {
		var c Clock
		wall := edgeTime + wrong
		c.Sample(edgeTime, reading(0, wall), reading(0, wall))
		if got := c.Now(reading(10*time.Second, wall+10_000)); !got.Synced || got.Earliest != edgeTime+10_000 {
			t.Errorf("%d ms wrong: %+v", wrong, got)
		}
		for _, jump := range []int64{-600_000, -5001, 5001, 600_000} {
			if c.Now(reading(10*time.Second, wall+10_000+jump)).Synced {
				t.Errorf("a jump of %d ms isn't seen", jump)
			}
		}
		if !c.Now(reading(10*time.Second, wall+15_000)).Synced {
			t.Error("five seconds are no jump")
		}
		after := reading(11*time.Second, wall+611_000)
		c.Sample(edgeTime+11_000, after, after)
		if !c.Now(after).Synced {
			t.Error("not synchronized after the next exchange")
		}
	}
}

// The edge's true time is always between the two ends, whatever the network does, so that nothing is accepted past its
// end.
func TestClockBoundsTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Microseconds of the edge's clock; the node's boot clock has another origin.
		trueUS := edgeTime*1000 + rapid.Int64Range(0, 999).Draw(t, "start")
		bootUS := rapid.Int64Range(0, 1<<40).Draw(t, "boot")
		there := rapid.Int64Range(0, 1_000_000).Draw(t, "there")
		back := rapid.Int64Range(0, 1_000_000).Draw(t, "back")
		later := rapid.Int64Range(0, 60_000_000).Draw(t, "later")
		look := func(us int64) Reading { return Reading{Boot: time.Duration(us) * time.Microsecond, Wall: us / 1000} }
		var c Clock
		if !c.Sample((trueUS+there)/1000, look(bootUS), look(bootUS+there+back)) {
			t.Fatal("the exchange isn't used")
		}
		now, truth := c.Now(look(bootUS+there+back+later)), trueUS+there+back+later
		if !now.Synced || now.Earliest*1000 > truth || now.Latest*1000 < truth {
			t.Fatalf("%+v at %d us", now, truth)
		}
	})
}
