package monitoring

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/patience"
	"iop/packages/go/tracing"
	"iop/packages/go/tracing/tracingtest"
)

// A key that the edge lends is in no span, and neither is that of the caller: not even when the provider gives the key
// back where a span takes words from its answer.
func TestNoKeyInSpans(t *testing.T) {
	receiver := tracingtest.Start(t)
	back := `{"model":"` + providerKey + `","choices":[{"index":0,"finish_reason":"` + providerKey + `","message":{"role":"assistant","content":"hi"}}]}`
	s := startSite(t, setup{tracing: &tracing.Config{Endpoint: receiver.URL, Service: "both"},
		hosted: fakeprovider.Routes(map[string]fakeprovider.Script{"GET /v1/models": fakeprovider.Models(),
			"POST /v1/chat/completions": fakeprovider.Answer(200, "application/json", back)})})
	for _, body := range []string{`{"model":"keyed","messages":[]}`, `{"model":"keyed","stream":true,"messages":[]}`} {
		if a, err := harness.Ask(s.edge.HTTP(), harness.Post("/v1/chat/completions", body, "Authorization: Bearer "+aliceKey), patience.Limit); err != nil || a.Cut == nil && a.StatusCode != 502 {
			t.Fatalf("%v, %v", a, err)
		}
	}
	s.edge.AwaitIdle(patience.Limit)
	for _, stop := range []func(time.Duration) error{s.node.Stop, s.edge.Stop} {
		if err := stop(patience.Limit); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	for _, span := range receiver.Spans() {
		if span.Name == "chat m" {
			asked++
		}
	}
	if asked != 2 {
		t.Errorf("the provider was asked in %d spans, want 2", asked)
	}
	for _, secret := range []string{providerKey, base64.StdEncoding.EncodeToString([]byte(providerKey)), aliceKey, "Bearer"} {
		if strings.Contains(string(receiver.Raw()), secret) {
			t.Errorf("a span has %s…", secret[:6])
		}
	}
}
