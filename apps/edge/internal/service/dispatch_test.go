package service

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

func TestMatch(t *testing.T) {
	node := &admission.Node{ID: "a", Labels: map[string]string{"site": "here", "gpu": "big"}}
	vllm := &admission.Adapter{Name: "vllm", Models: []execution.Model{{Name: "m1"}, {Name: "m2"}}}
	open := &admission.Adapter{Name: "open"} // doesn't tell what it has
	for _, c := range []struct {
		name    string
		route   config.Route
		adapter *admission.Adapter
		target  string
		want    bool
	}{
		{"adapter and target", config.Route{Model: "x", Adapter: "vllm", Target: "m1"}, vllm, "m1", true},
		{"another adapter", config.Route{Model: "x", Adapter: "ollama", Target: "m1"}, vllm, "m1", false},
		{"any adapter", config.Route{Model: "x", Target: "m1"}, vllm, "m1", true},
		{"target it hasn't", config.Route{Model: "x", Adapter: "vllm", Target: "m3"}, vllm, "m3", false},
		{"adapter that doesn't tell", config.Route{Model: "x", Adapter: "open", Target: "m3"}, open, "m3", true},
		{"node", config.Route{Model: "x", Target: "m1", Nodes: []string{"b", "a"}}, vllm, "m1", true},
		{"other nodes", config.Route{Model: "x", Target: "m1", Nodes: []string{"b"}}, vllm, "m1", false},
		{"labels", config.Route{Model: "x", Target: "m1", Labels: map[string]string{"site": "here"}}, vllm, "m1", true},
		{"all labels", config.Route{Model: "x", Target: "m1", Labels: map[string]string{"site": "here", "gpu": "small"}}, vllm, "m1", false},
		{"label it hasn't", config.Route{Model: "x", Target: "m1", Labels: map[string]string{"rack": ""}}, vllm, "m1", false},
		{"wildcard", config.Route{Model: "*"}, vllm, "m2", true},
		{"wildcard, not offered", config.Route{Model: "*"}, vllm, "m3", false},
	} {
		if got := Match(&c.route, c.target)(node, c.adapter); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// Requests of one set have the same candidates: where the route leaves the target to the caller, the target is part of
// the name.
func TestSets(t *testing.T) {
	fixed, open := &config.Route{Model: "x", Target: "m1"}, &config.Route{Model: "*"}
	if setOf(fixed, "m1") != "x" || setOf(open, "m1") == setOf(open, "m2") || setOf(open, "x") == setOf(&config.Route{Model: "*x"}, "") {
		t.Error("sets are mixed up")
	}
}

// One line a run says what became of it, with the names of the wire, and nothing of what the caller sent or got.
func TestLogLine(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t, setup{nodes: []string{"a", "b"}, work: func(w *work) {
		w.accept()
		if w.attempt == 1 {
			w.fail(execution.CodeUpstreamConnect, true)
			return
		}
		w.head(200)
		w.body("S3CR3T-answer")
		w.usage(5, 6)
		w.end(13)
	}})
	r.svc.cfg.Log = zerolog.New(&log)
	tunnel := r.tunnel("run-1", "S3CR3T-body")
	tunnel.Header.Set("X-Key", "S3CR3T-key")
	tunnel.Query, tunnel.SessionID = "key=S3CR3T", "s-1"
	if o, _ := r.run(tunnel); !o.OK() {
		t.Fatal(o.Failure)
	}
	r.idle()
	if strings.Contains(log.String(), "S3CR3T") {
		t.Errorf("the log tells too much: %s", log.String())
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	var line map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &line); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"level": "info", "run_id": "run-1", "principal": "anonymous", "model": "m", "target": "p", "adapter": "p", "attempts": 2.0,
		"code": "ok", "status": 200.0, "bytes_in": 11.0, "bytes_out": 13.0, "input_tokens": 5.0, "output_tokens": 6.0, "session_id": "s-1",
		"connection_generation": 1.0,
	} {
		if line[key] != want {
			t.Errorf("%s is %v, want %v", key, line[key], want)
		}
	}
	if tried, _ := line["tried"].([]any); len(tried) != 1 || !strings.Contains(tried[0].(string), "upstream_connect") {
		t.Errorf("tried %v", line["tried"])
	}
}
