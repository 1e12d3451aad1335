package httpapi

import (
	"strings"
	"testing"
)

// What is read of a body takes memory for each of its values, however short: very many tiny ones count as much more than
// their bytes, and are refused before anything is made of them.
func TestManyTinyValuesCount(t *testing.T) {
	const budget = 1 << 20
	g := start(t, fleet("anthropic"), func(cfg *Config) { cfg.Limits.Body, cfg.Limits.BodyMemory = 256<<10, budget })
	chat := func(content string) (int, string) {
		resp, body := g.do2("POST", "/v1/chat/completions", "", `{"model":"small","max_tokens":1,"messages":[{"role":"user","content":`+content+`}]}`)
		return resp.StatusCode, body
	}
	part := `{"type":"text","text":"a"},`
	if status, body := chat("[" + strings.TrimSuffix(strings.Repeat(part, 4000), ",") + "]"); status != 413 {
		t.Errorf("4000 parts in %d bytes: %d %s", 4000*len(part), status, body)
	}
	if status, body := chat(`"` + strings.Repeat("a", 4000*len(part)) + `"`); status != 200 {
		t.Errorf("a text of the same length: %d %s", status, body)
	}
	g.wantNothingHeld()
}
