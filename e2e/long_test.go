package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// patient is a rig on which every limit that could end a long request is scaled like the request itself.
func patient(t *testing.T, s scale, script fakeprovider.Script) *rig {
	t.Helper()
	edge, node := s.timers()
	return newRig(t, script, setup{Options: harness.Options{
		Timers:     strings.TrimSuffix(edge, "}") + fmt.Sprintf(", header_read: %v}", s.of(10*time.Second)),
		NodeTimers: node,
		Routes:     fmt.Sprintf(`[{model: "*", first_byte: %v, idle: %v}]`, s.of(10*time.Minute), s.of(5*time.Minute)),
	}})
}

// ST-16
func TestStreamOutlivesEveryLimit(t *testing.T) {
	t.Parallel()
	streamsOn(t, 5)
}

// ST-16 as it is: 150 s
func TestLongStreamOutlivesEveryLimit(t *testing.T) {
	long(t, "a stream of 150 s")
	streamsOn(t, 1)
}

func streamsOn(t *testing.T, s scale) {
	pause := s.of(5 * time.Second)
	r := patient(t, s, func(x *fakeprovider.Exchange) {
		x.Body()
		x.BeginStream(200, "text/event-stream")
		for i := range 30 {
			if !x.Pause(pause) {
				return
			}
			x.Chunk(delta(fmt.Sprint(i)))
		}
		x.EndChunks()
	})
	c := r.dial()
	began := time.Now()
	c.Send(chat())
	response := c.Head(limit, "POST")
	for i := range 30 {
		c.Expect(response.Body, delta(fmt.Sprint(i)), pause+limit)
	}
	if n, err := response.Body.Read(make([]byte, 1)); n != 0 || err == nil || err.Error() != "EOF" {
		t.Errorf("after the last event: %d bytes, %v", n, err)
	}
	if took := time.Since(began); took < 30*pause {
		t.Errorf("the stream took only %v", took)
	}
	wantLog(t, r.ended(response.Header), map[string]any{"code": "ok"})
}

// OL-01
func TestColdModelIsWaitedFor(t *testing.T) {
	t.Parallel()
	waitsFor(t, 5)
}

// OL-01 as it is: 120 s
func TestLongColdModelIsWaitedFor(t *testing.T) {
	long(t, "a model that takes 120 s to load")
	waitsFor(t, 1)
}

func waitsFor(t *testing.T, s scale) {
	silence := s.of(2 * time.Minute)
	left := make(chan bool, 1)
	r := patient(t, s, func(x *fakeprovider.Exchange) {
		left <- !x.Pause(silence)
		ok(x)
	})
	before := r.Node("box")
	a, err := harness.Ask(r.HTTP(), chat(), silence+limit)
	if err != nil {
		t.Fatal(err)
	}
	wantWhole(t, a, 200, `{"object":"chat.completion"}`)
	if await(t, left, "the provider's word") {
		t.Error("the node closed the provider's connection while the model was loading")
	}
	if n := len(r.seen()); n != 1 {
		t.Errorf("the provider saw %d requests", n)
	}
	if after := r.Node("box"); after.State != "ready" || after.Generation != before.Generation {
		t.Errorf("the node was %+v, is %+v", before, after)
	}
}
