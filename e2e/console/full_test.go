package console

import (
	"fmt"
	"time"
)

// made is when the made-up edge below lives.
var made = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) string { return made.Add(-d).Format(time.RFC3339Nano) }

// fullSnapshot is one of an edge in which something of every kind is going on.
var fullSnapshot = snapshot(object{
	"at":       made,
	"warnings": []string{"the node lab-2 is connected and doesn't answer what is sent to it", "programs of different versions work together: v1.1.0, v1.2.0"},
	"nodes":    fullNodes(),
	"queue": object{"draining": false, "queued": 3, "sets": []any{}, "places": fullPlaces(), "routes": []any{
		object{"route": "qwen3-8b", "adapter": "", "waiting": 3, "longest_ms": 41_200, "running": 4, "queue_depth": 64, "queue_wait_ms": 60_000, "fail_fast": false},
		object{"route": "a-route-with-quite-a-long-name/that-somebody-thought-of:latest", "adapter": "", "waiting": 0, "longest_ms": 0, "running": 0, "queue_depth": 64, "queue_wait_ms": 60_000, "fail_fast": true},
		object{"route": "", "adapter": "llama", "waiting": 0, "longest_ms": 0, "running": 1, "queue_depth": 64, "queue_wait_ms": 0, "fail_fast": false}}},
	"slots": fullSlots,
	"live":  object{"total": 7, "runs": fullLive()},
	"ended": object{"total": 128, "runs": fullEnded()},
})

func adapter(name, kind string, inFlight, capacity int, reason string, models ...string) object {
	list := []any{}
	for i, m := range models {
		list = append(list, object{"name": m, "loaded": i == 0})
	}
	return object{"name": name, "kind": kind, "available": reason == "", "reason": reason, "version": "0.9.2", "in_flight": inFlight, "capacity": capacity, "models": list}
}

func node(id, state, reason, version string, drained bool, adapters ...any) object {
	n := object{"id": id, "state": state, "reason": reason, "drained": drained, "generation": 17, "instance_id": "ab", "version": version,
		"since": before(50 * time.Hour), "last_heartbeat": before(4 * time.Second), "adapters": adapters}
	if state == "offline" || state == "disabled" {
		n["since"], n["last_heartbeat"], n["adapters"] = nil, nil, []any{}
	}
	return n
}

func fullNodes() []any {
	return []any{
		node("gpu-1", "ready", "", "v1.2.0", false,
			adapter("ollama", "ollama", 3, 4, "", "qwen3:8b", "llama3.3:70b-instruct-q4_K_M", "nomic-embed-text:latest", "gemma3:27b", "mistral-small:24b", "deepseek-r1:32b"),
			adapter("vllm", "openai", 8, 8, "", "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8")),
		node("lab-2", "unresponsive", "three requests in a row weren't answered", "v1.1.0", false,
			adapter("llama", "openai", 1, 2, "connect: connection refused at 127.0.0.1:8000")),
		node("office", "ready", "", "v1.2.0", true, adapter("ollama", "ollama", 0, 2, "", "qwen3:8b")),
		node("laptop-of-someone-with-a-long-name.example.internal", "offline", "its connection ended 2026-11-29T11:58:03Z: lost", "v1.2.0", false),
		node("retired", "disabled", "the configuration has it disabled", "", false),
	}
}

func fullPlaces() []any {
	place := func(node, adapter string, more object) object {
		p := object{"node": node, "adapter": adapter, "generation": 17, "capacity": 4, "in_flight": 1, "unconfirmed": 0, "adopted": 0, "candidate": true, "saturated": false, "broken": nil}
		for k, v := range more {
			p[k] = v
		}
		return p
	}
	return []any{
		place("gpu-1", "vllm", object{"saturated": true, "adopted": 1}),
		place("lab-2", "llama", object{"unconfirmed": 1, "broken": object{"failures": 5, "why": "upstream_connect", "until": made.Add(42 * time.Second), "trying": false}}),
	}
}

func request(id, state, code string, more object) object {
	r := object{"run_id": id, "kind": "tunnel", "state": state, "live": code == "", "background": false, "principal": "alice", "session_id": "", "model": "qwen3-8b",
		"route": "qwen3-8b", "adapter": "ollama", "target": "qwen3:8b", "node": "gpu-1", "connection_generation": 17, "attempts": 1,
		"created_at": before(95 * time.Second), "placed_at": before(94 * time.Second), "ended_at": nil, "queue_ms": 0, "first_byte_ms": 0, "duration_ms": 0,
		"bytes_in": 0, "bytes_out": 0, "usage": nil, "finish_reason": "", "code": code, "origin": "", "error": ""}
	if code != "" {
		r["ended_at"] = before(10 * time.Second)
	}
	for k, v := range more {
		r[k] = v
	}
	return r
}

func fullLive() []any {
	return []any{
		request("01JDWQ8Z6M3V5T0K9E2B7XHGNA", "running", "", object{"first_byte_ms": 1840, "bytes_out": 48_213, "principal": "team-with-a-long-name-research"}),
		request("01JDWQ8Z6M3V5T0K9E2B7XHGNB", "detached", "", object{"background": true, "attempts": 2, "node": "laptop-of-someone-with-a-long-name.example.internal", "model": "", "target": "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"}),
		request("01JDWQ8Z6M3V5T0K9E2B7XHGNC", "queued", "", object{"node": "", "adapter": "", "created_at": before(41 * time.Second)}),
	}
}

func fullEnded() []any {
	usage := object{"input": 1204, "output": 480, "cached": nil, "reasoning": nil}
	return []any{
		request("01JDWQ8Z6M3V5T0K9E2B7XHGND", "complete", "ok", object{"first_byte_ms": 640, "duration_ms": 10_640, "queue_ms": 12, "bytes_out": 9_120, "usage": usage}),
		request("01JDWQ8Z6M3V5T0K9E2B7XHGNE", "error", "upstream_truncated", object{"first_byte_ms": 320, "duration_ms": 2_040, "origin": "provider",
			"error": "the provider closed its connection in the middle of the answer, after 1,204 bytes and before the event that ends it; it may have crashed"}),
		request("01JDWQ8Z6M3V5T0K9E2B7XHGNF", "cancelled", "client_gone", object{"duration_ms": 61_000, "queue_ms": 60_900, "node": "", "adapter": "", "origin": "caller", "error": "the caller left"}),
		request("01JDWQ8Z6M3V5T0K9E2B7XHGNG", "error", "queue_timeout", object{"duration_ms": 60_000, "queue_ms": 60_000, "node": "", "adapter": "", "origin": "edge", "error": "no place within 60s"}),
	}
}

var fullSlots = []any{
	object{"id": "hosted-openai", "state": "active", "reason": "", "revision": 12, "source": "file", "profile": "openai", "header": "Authorization", "origin": "https://api.example.com:443",
		"nodes": []string{"gpu-1", "office"}, "length": 51, "fingerprint": "4f2a9c", "since": before(72 * time.Hour), "last_refresh": before(time.Minute), "routes": []string{"gpt-large", "gpt-small"}},
	object{"id": "hosted-anthropic", "state": "disabled", "reason": "an operator disabled it", "revision": 3, "source": "exec", "profile": "anthropic", "header": "X-Api-Key",
		"origin": "https://api.example.org:443", "nodes": []string{"gpu-1"}, "length": 0, "fingerprint": "", "since": nil, "last_refresh": nil, "routes": []string{}},
}

func fullEvents() []string {
	at := func(s int) string { return before(time.Duration(s) * time.Second) }
	one := func(id int, kind string, more object) string {
		e := object{"id": fmt.Sprintf("e-%d", id), "at": at(60 - id), "kind": kind}
		for k, v := range more {
			e[k] = v
		}
		return event(encode(e))
	}
	return []string{
		one(1, "ready", object{"node": "gpu-1", "connection_generation": 17}),
		one(2, "adapter_unavailable", object{"node": "lab-2", "adapter": "llama", "text": "connect: connection refused at 127.0.0.1:8000"}),
		event(`{"kind":"missed","missed":3,"why":"slow"}`),
		one(3, "run_queued", object{"run_id": "01JDWQ8Z6M3V5T0K9E2B7XHGNC", "principal": "alice", "model": "qwen3-8b", "position": 3, "after_ms": 2}),
		one(4, "run_first_byte", object{"run_id": "01JDWQ8Z6M3V5T0K9E2B7XHGNA", "principal": "alice", "model": "qwen3-8b", "node": "gpu-1", "adapter": "ollama", "after_ms": 1840}),
		one(5, "fenced", object{"node": "laptop-of-someone-with-a-long-name.example.internal", "code": "lost", "text": "nothing came from it for 45s"}),
		one(6, "run_ended", object{"run_id": "01JDWQ8Z6M3V5T0K9E2B7XHGND", "principal": "alice", "model": "qwen3-8b", "node": "gpu-1", "adapter": "ollama", "code": "ok", "after_ms": 10_640}),
	}
}
