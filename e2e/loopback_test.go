package e2e

import (
	"bytes"
	"fmt"
	"testing"

	"iop/e2e/harness"
)

// The embedded provider over the whole path: what `make demo` shows.
func TestEmbeddedProvider(t *testing.T) {
	t.Parallel()
	edge, node := harness.Pair(t, harness.Options{})
	ask := func(directive string) *harness.Answer {
		t.Helper()
		a, err := harness.Ask(edge.HTTP(), harness.Post(chatPath, fmt.Sprintf(
			`{"model":"loopback","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":%q}]}`, directive)), limit)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	whole := ask("hi loopback: tokens=7 delay=1ms mark=e2e")
	if whole.StatusCode != 200 || whole.Cut != nil || whole.Header.Get("Content-Type") != "text/event-stream" ||
		!bytes.HasSuffix(whole.Bytes, []byte(done)) || !bytes.Contains(whole.Bytes, []byte("[e2e]")) {
		t.Errorf("got %d %v %v\n%s", whole.StatusCode, whole.Cut, whole.Header, whole.Bytes)
	}
	line := edge.Log.Ended(t, whole.Header.Get("X-IOP-Run-Id"))
	wantLog(t, line, map[string]any{"code": "ok", "node_id": "box", "adapter": "loopback"})
	if line["output_tokens"] == nil {
		t.Errorf("the run's line has no token counts: %v", line)
	}
	if a := ask("loopback: fail=429"); a.StatusCode != 429 || a.Cut != nil {
		t.Errorf("fail: got %d %v", a.StatusCode, a.Cut)
	}
	if a := ask("loopback: cut=3 delay=1ms"); a.StatusCode != 200 || a.Cut == nil || bytes.Contains(a.Bytes, []byte("[DONE]")) {
		t.Errorf("cut: got %d %v\n%s", a.StatusCode, a.Cut, a.Bytes)
	}
	models, err := harness.Ask(edge.HTTP(), "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", limit)
	if err != nil || !bytes.Contains(models.Bytes, []byte(`"id":"loopback"`)) {
		t.Errorf("models: %v %v", models, err)
	}
	edge.AwaitIdle(limit)
	node.AwaitIdle(limit)
}
