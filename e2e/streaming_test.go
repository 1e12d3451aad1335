package e2e

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// prompt is how soon what the provider wrote must be with the caller, as the cases say. Any event may be late because the
// machine is busy; what waits for a flush makes all of them late.
const prompt = 100 * time.Millisecond

// lockstep lets the provider write each piece only after the caller has the one before: whatever holds a piece back
// until more comes stands still here. It returns how long each piece took.
func lockstep(t *testing.T, contentType string, pieces []string, lines ...string) (*rig, []byte) {
	t.Helper()
	f := newFeed(t)
	r := newRig(t, f.script, setup{})
	c := r.dial()
	c.Send(chat())
	f.begin(t, contentType, lines...)
	response := c.Head(limit, "POST") // before any body: the head alone is a sign of life (ST-02)
	var took []time.Duration
	for _, piece := range pieces {
		wrote := f.chunk(t, piece)
		took = append(took, c.Expect(response.Body, piece, limit).Sub(wrote))
	}
	f.finish(t)
	c.Expect(response.Body, "", limit)
	if n, err := response.Body.Read(make([]byte, 1)); n != 0 || err == nil || err.Error() != "EOF" {
		t.Errorf("after the last piece: %d bytes, %v; want a clean end", n, err)
	}
	if quickest := slices.Min(took); quickest > prompt {
		t.Errorf("each piece took %v or more: %v", quickest, took)
	}
	return r, c.Raw()
}

// ST-01
func TestEventsArriveAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	var events []string
	for range 10 {
		events = append(events, delta("tick"))
	}
	_, raw := lockstep(t, "text/event-stream", events, "Cache-Control: no-cache", "X-Accel-Buffering: no")
	for _, line := range []string{"Cache-Control: no-cache\r\n", "X-Accel-Buffering: no\r\n", "Content-Type: text/event-stream\r\n"} {
		if n := countFold(raw, line); n != 1 {
			t.Errorf("%q is there %d times:\n%s", line, n, raw)
		}
	}
}

// ST-02
func TestEveryContentTypeIsFlushed(t *testing.T) {
	for _, contentType := range []string{"application/x-ndjson", "application/json", "text/plain"} {
		t.Run(contentType, func(t *testing.T) {
			t.Parallel()
			lockstep(t, contentType, []string{"{\"n\":1}\n", "{\"n\":2}\n", "{\"n\":3}\n", "{\"n\":4}\n", "{\"n\":5}\n"})
		})
	}
}

// ST-06
func TestCommentsAreNotHeldBack(t *testing.T) {
	t.Parallel()
	var pieces []string
	for range 10 {
		pieces = append(pieces, ": ping\n\n")
	}
	lockstep(t, "text/event-stream", append(pieces, delta("at last"), done))
}

// countFold counts a text in raw bytes, in any case.
func countFold(raw []byte, text string) int {
	return bytes.Count(bytes.ToLower(raw), bytes.ToLower([]byte(text)))
}
