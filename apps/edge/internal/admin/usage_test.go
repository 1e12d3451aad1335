package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		query, asked, says string
		status             int
		err                error
	}{
		{"", "||", `{"usage":[{"principal":"alice","requests":3,"failed":1,"estimated":2,"input_tokens":4,"output_tokens":5,"cached_tokens":6,"reasoning_tokens":7}]}`, 200, nil},
		{"?from=2026-01-01&to=2026-01-31&by=day,node", "2026-01-01|2026-01-31|day,node", `"principal":"alice"`, 200, nil},
		{"?from=yesterday", "", "from must be a day", 400, nil},
		{"?by=key", "", "is none of day, principal, model, node", 400, nil},
		{"?since=2026-01-01", "", "unknown parameter", 400, nil},
		{"?to=2026-01-01", "|2026-01-01|", "the edge's log says why", 500, errors.New("disk I/O error")},
	} {
		g := newRig(t, here)
		asked := ""
		g.h.(*handler).cfg.Usage = func(_ context.Context, from, to string, by []string) ([]UsageView, error) {
			asked = fmt.Sprint(from, "|", to, "|", strings.Join(by, ","))
			return []UsageView{{Principal: "alice", Requests: 3, Failed: 1, Estimated: 2, InputTokens: 4, OutputTokens: 5, CachedTokens: 6, ReasoningTokens: 7}}, c.err
		}
		resp, body := g.ask("GET", "/admin/v1/usage"+c.query, here)
		if resp.StatusCode != c.status || !strings.Contains(body, c.says) || asked != c.asked {
			t.Errorf("%s: %s %s, asked %q", c.query, resp.Status, body, asked)
		}
	}
	g := newRig(t, here)
	g.h.(*handler).cfg.Usage = nil
	if resp, _ := g.ask("GET", "/admin/v1/usage", here); resp.StatusCode != 404 {
		t.Errorf("without a ledger: %s", resp.Status)
	}
}
