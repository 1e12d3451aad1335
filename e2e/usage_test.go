package e2e

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// ST-26
func TestUsageInEveryShapeOfItsChunk(t *testing.T) {
	t.Parallel()
	const counts = `"usage":{"prompt_tokens":65,"completion_tokens":251,"total_tokens":316}`
	r := newRig(t, nil, setup{})
	for name, last := range map[string]string{
		"no choices":      finish + `data: {"choices":[],` + counts + "}\n\n",
		"an empty choice": finish + `data: {"choices":[{"index":0,"delta":{}}],` + counts + "}\n\n",
		"finish chunk":    `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],` + counts + "}\n\n",
	} {
		body := delta("a") + delta("b") + last + done
		r.provider.Use(fakeprovider.Raw(stream("text/event-stream", body)))
		a := r.ask(chat())
		wantWhole(t, a, 200, body)
		t.Log(name)
		wantLog(t, r.ended(a.Header), map[string]any{"input_tokens": 65, "output_tokens": 251})
	}
}

// ST-28
func TestNullUsageOverwritesNothing(t *testing.T) {
	t.Parallel()
	empty := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}],\"usage\":null}\n\n"
	body := strings.Repeat(empty, 5) + usage(11, 7) + empty + done
	r := newRig(t, fakeprovider.Raw(stream("text/event-stream", body)), setup{})
	a := r.ask(chat())
	wantWhole(t, a, 200, body)
	wantLog(t, r.ended(a.Header), map[string]any{"input_tokens": 11, "output_tokens": 7}) // and it is the only line of this run
}

// ST-10, raw half
func TestCompressedStreamPassesAndIsNotCountedAsNothing(t *testing.T) {
	t.Parallel()
	plain := []string{delta("a"), delta("b"), usage(11, 7), done}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	var pieces []string
	for _, event := range plain {
		if _, err := z.Write([]byte(event)); err != nil {
			t.Fatal(err)
		}
		if err := z.Flush(); err != nil {
			t.Fatal(err)
		}
		pieces = append(pieces, packed.String())
		packed.Reset()
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	pieces = append(pieces, packed.String())
	r := newRig(t, func(x *fakeprovider.Exchange) {
		x.Body()
		answer := plain
		if x.Header.Get("Accept-Encoding") == "gzip" {
			x.BeginStream(200, "text/event-stream", "Content-Encoding: gzip")
			answer = pieces
		} else {
			x.BeginStream(200, "text/event-stream")
		}
		for _, piece := range answer {
			x.Chunk(piece)
		}
		x.EndChunks()
		x.Close()
	}, setup{})

	a := r.ask(chat("Accept-Encoding: gzip"))
	wantWhole(t, a, 200, strings.Join(pieces, ""))
	if a.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("header %v", a.Header)
	}
	if line := r.ended(a.Header); line["input_tokens"] != nil || line["output_tokens"] != nil {
		wantLog(t, line, map[string]any{"input_tokens": 11, "output_tokens": 7})
	}

	// The node must not ask for what the caller can't read.
	a = r.ask(chat())
	wantWhole(t, a, 200, strings.Join(plain, ""))
	wantLog(t, r.ended(a.Header), map[string]any{"input_tokens": 11, "output_tokens": 7})
	if got := r.seen()[1].Header.Get("Accept-Encoding"); got != "" {
		t.Errorf("the provider was asked for Accept-Encoding %q", got)
	}
}

// A caller that closes its connection on the last byte of an answer whose length it knows has the whole answer: the run
// is booked as one that succeeded, with its usage, however late the node's last word comes.
func TestCallersThatLeaveWithTheWholeAnswer(t *testing.T) {
	t.Parallel()
	const n = 300
	const body = `{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7}}`
	r := newRig(t, fakeprovider.Answer(200, "application/json", body), setup{places: 16, Options: harness.Options{
		Routes: `[{model: "*", queue: {depth: 300}}]`}})
	all(n, func(int) {
		if a, err := harness.Ask(r.HTTP(), chat(), limit); err != nil || a.StatusCode != 200 || string(a.Bytes) != body {
			t.Errorf("%v, %v", a, err)
		}
	})
	r.idle()
	harness.Until(t, limit, "every run has ended", func() bool { return len(r.Log.Entries("run ended")) == n })
	for _, line := range r.Log.Entries("run ended") {
		wantLog(t, line, map[string]any{"code": "ok", "input_tokens": 11, "output_tokens": 7})
	}
}
