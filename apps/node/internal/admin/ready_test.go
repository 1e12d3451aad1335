package admin

import (
	"testing"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/transport"
)

func TestReadyWhenOneEdgeIsServed(t *testing.T) {
	for _, c := range []struct {
		links []transport.Status
		code  int
		body  string
	}{
		{nil, 503, ""},
		{[]transport.Status{{Edge: "a:1", State: transport.StateBackoff}, {Edge: "b:1", State: transport.StateDraining}}, 503, "a:1: backoff\nb:1: draining\n"},
		{[]transport.Status{{Edge: "a:1", State: transport.StateBackoff}, {Edge: "b:1", State: transport.StateServing}}, 200, "ready at b:1\n"},
	} {
		h := New(Config{Listen: "127.0.0.1:9", Metrics: NewMetrics(),
			Links: func() []transport.Status { return c.links }, Work: func() []node.Snapshot { return nil }})
		if code, body := get(t, h, "127.0.0.1:9", "/readyz"); code != c.code || body != c.body {
			t.Errorf("%v: %d %q", c.links, code, body)
		}
	}
}
