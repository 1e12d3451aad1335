package e2e

import (
	"io"
	"strings"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// program is what is told to stop: the node or the edge.
type program interface {
	Term()
	Stop(limit time.Duration) error
	Kill() error
	Done() <-chan struct{}
}

// draining is a rig with three streams, of which one program is about to be told to stop.
type draining struct {
	*linked
	stops   program
	code    string // of what is cut
	callers []*follower
}

// newDraining starts three streams of so many events, one each 10 ms; 0 never end.
func newDraining(t *testing.T, s scale, who string, events int) *draining {
	t.Helper()
	script, _ := endless(10 * time.Millisecond)
	if events > 0 {
		script = fakeprovider.Events(10*time.Millisecond, strings.Split(strings.Repeat(delta("tick")+"|", events), "|")[:events]...)
	}
	d := &draining{code: who + "_draining"}
	d.linked = newLinked(t, s, script, setup{scaled: []string{"drain"}, Options: harness.Options{Routes: `[{model: "*", queue: {wait: 300ms}}]`}})
	d.stops = d.node
	if who == "edge" {
		d.stops = d.Edge
	}
	for range 3 {
		d.callers = append(d.callers, follow(t, d.HTTP(), chatBody, delta("tick")))
	}
	return d
}

// TU-30, faults rows 2 and 4: the node, or the edge, is told to stop while streams run. It takes nothing new, says so,
// and the streams end whole; then it ends without an error, well before its grace is over.
func TestDrainLetsStreamsEnd(t *testing.T) {
	for _, who := range []string{"node", "edge"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			const events = 300 // three seconds: it is to be looked at while they run
			d := newDraining(t, 1, who, events)
			start := time.Now()
			d.stops.Term()
			if who == "node" {
				harness.Until(t, late, "the edge knows", func() bool { return d.Node("box").State == "draining" })
				if a := d.ask(chat()); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
					t.Errorf("nobody is left: %d %s", a.StatusCode, a.Bytes)
				}
			} else {
				harness.Until(t, late, "the edge drains", func() bool { return d.Log.Contains("edge is draining") })
				harness.Until(t, late, "the node was told", func() bool { return d.node.Log.Contains("the edge drains") })
				if a := d.ask(chat()); a.StatusCode != 503 || code(a) != "edge_draining" || a.Header.Get("Retry-After") == "" {
					t.Errorf("the edge drains: %d %s", a.StatusCode, a.Bytes)
				}
			}
			for _, c := range d.callers {
				_ = c.SetReadDeadline(time.Now().Add(limit))
				rest, err := io.ReadAll(c.response.Body)
				if err != nil || string(rest) != strings.Repeat(delta("tick"), events-1) {
					t.Errorf("a stream ended with %v after %d bytes", err, len(rest))
				}
				wantLog(t, d.Log.Ended(t, c.runID()), map[string]any{"code": "ok"})
			}
			if err := d.stops.Stop(limit); err != nil {
				t.Error(err)
			}
			between(t, "the end", time.Since(start), 0, drain-time.Second)
			if n := len(d.seen()); n != 3 {
				t.Errorf("the provider saw %d requests", n)
			}
		})
	}
}

// TU-30: what is longer than the grace ends with one terminal that says why, and the program ends without an error.
func TestDrainEndsWhatIsTooLong(t *testing.T) {
	for _, who := range []string{"node", "edge"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			const s scale = 30
			d := newDraining(t, s, who, 0)
			start := time.Now()
			d.stops.Term()
			for _, c := range d.callers {
				between(t, "the cut", c.cut(t, s.of(drain)+late).Sub(start), s.of(drain), s.of(drain)+late)
				wantLog(t, d.Log.Ended(t, c.runID()), map[string]any{"code": d.code})
			}
			if err := d.stops.Stop(limit); err != nil {
				t.Error(err)
			}
			between(t, "the end", time.Since(start), s.of(drain), s.of(drain)+late)
			harness.Until(t, limit, "the provider has no connection", func() bool { _, open := d.provider.Connections(); return open == 0 })
		})
	}
}

// TU-30: a second signal ends either program at once, whatever runs.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	for _, who := range []string{"node", "edge"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			d := newDraining(t, 1, who, 0)
			d.stops.Term()
			message := "draining"
			if who == "edge" {
				message = "edge is draining"
			}
			harness.Until(t, late, "it drains", func() bool { return d.Log.Contains(message) })
			start := time.Now()
			if err := d.stops.Kill(); err != nil {
				t.Error(err)
			}
			between(t, "the end", time.Since(start), 0, 2*time.Second+late)
			for _, c := range d.callers {
				c.cut(t, late)
			}
			harness.Until(t, limit, "the provider has no connection", func() bool { _, open := d.provider.Connections(); return open == 0 })
		})
	}
}
