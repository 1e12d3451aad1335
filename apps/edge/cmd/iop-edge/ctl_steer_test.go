package main

import (
	"strings"
	"testing"
)

func TestCtlWhy(t *testing.T) {
	f := newFakeAdmin(t)
	f.answer = `{"model":"qwen","principal":"","path":"","problems":[],"route":{"model":"*","adapter":"","target":"","nodes":[],"labels":{},"queue_depth":64,"queue_wait_ms":60000,"fail_fast":false},` +
		`"target":"qwen","queue":{"waiting":3,"longest_ms":12000},"candidates":[` +
		`{"node":"a","adapter":"ollama","state":"ready","on_route":true,"takes_work":true,"loaded":true,"in_flight":1,"capacity":2,"reasons":[]},` +
		`{"node":"b","adapter":"ollama","state":"ready","on_route":true,"takes_work":true,"loaded":false,"in_flight":0,"capacity":2,"reasons":[]},` +
		`{"node":"c","adapter":"ollama","state":"offline","on_route":true,"takes_work":false,"loaded":false,"in_flight":0,"capacity":0,"reasons":[` +
		`{"code":"offline","text":"the node isn't connected"},{"code":"drained","text":"an operator keeps new work from it"}]},` +
		`{"node":"d","adapter":"vllm","state":"ready","on_route":false,"takes_work":false,"loaded":false,"in_flight":0,"capacity":4,"reasons":[{"code":"other_adapter","text":"the route asks for the adapter ollama"}]}]}` + "\n"
	f.want(t, []string{"why", "qwen"}, "GET /admin/v1/why", `
model qwen takes the route "*" and asks for qwen
3 of 64 wait for a place, the first for 12s; each may wait 1m0s

NODE  ADAPTER  STATE    RUNNING  TAKES WORK   WHY NOT
a     ollama   ready    1/2      yes, loaded  -
b     ollama   ready    0/2      yes          -
c     ollama   offline  0/0      no           the node isn't connected
                                              an operator keeps new work from it
1 adapter not on the route; --all shows why
`)
	if _, out, _ := f.ctl("why", "qwen", "--all"); !strings.Contains(out, "d     vllm     ready    0/4      no           the route asks for the adapter ollama\n") || strings.Contains(out, "--all") {
		t.Errorf("all:\n%s", out)
	}
	f.answer = `{"model":"x/y z","principal":"bob","problems":[{"code":"unknown_model","text":"no such model"}],"route":null,"target":"x","queue":{},"candidates":[]}` + "\n"
	f.want(t, []string{"why", "x/y z", "--principal", "bob", "--path", "/v1/embeddings"}, "GET /admin/v1/why", "callers are refused: unknown_model: no such model\n")
	if f.query != "model=x%2Fy+z&path=%2Fv1%2Fembeddings&principal=bob" {
		t.Errorf("asked %s", f.query)
	}
}

func TestCtlExplain(t *testing.T) {
	f := newFakeAdmin(t)
	f.answer = `{"run_id":"r","kind":"tunnel","state":"complete","created_at":"2026-11-29T13:06:29Z","ended_at":"2026-11-29T13:06:31Z","duration_ms":2000,"code":"ok","attempts":2,"timeline":[` +
		`{"event":"run_submitted","at":"2026-11-29T13:06:29Z","after_ms":0,"attempt":0},` +
		`{"event":"run_queued","at":"2026-11-29T13:06:29Z","after_ms":0,"attempt":1,"position":3},` +
		`{"event":"run_placed","at":"2026-11-29T13:06:30Z","after_ms":1000,"attempt":1,"node":"n","adapter":"a","connection_generation":7},` +
		`{"event":"run_retried","at":"2026-11-29T13:06:30.25Z","after_ms":1250,"attempt":1,"node":"n","adapter":"a","connection_generation":7,"code":"adapter_busy"},` +
		`{"event":"run_ended","at":"2026-11-29T13:06:31Z","after_ms":2000,"attempt":9,"node":"m","adapter":"a","connection_generation":8,"code":"ok","skipped":11}]}` + "\n"
	code, out, errs := f.ctl("explain", "r")
	if code != 0 || errs != "" || f.asked != "GET /admin/v1/runs/r" || !strings.HasPrefix(out, "run ") || !strings.Contains(out, "\ncode ") {
		t.Errorf("%d %s %s\n%s", code, errs, f.asked, out)
	}
	_, steps, _ := strings.Cut(out, "\n\n")
	want := `
TIME          AFTER  STEP                        ATTEMPT  NODE  ADAPTER  NOTE
13:06:29.000  0s     run_submitted               -        -     -        -
13:06:29.000  0s     run_queued                  1        -     -        position 3
13:06:30.000  1s     run_placed                  1        n     a        -
13:06:30.250  1.25s  run_retried                 1        n     a        adapter_busy
…                    11 steps aren't remembered                           
13:06:31.000  2s     run_ended                   9        m     a        ok
`
	if steps != strings.TrimPrefix(want, "\n") {
		t.Errorf("printed\n%s\nwant\n%s", steps, want)
	}
	if _, out, _ := f.ctl("explain", "r", "-o", "json"); out != f.answer {
		t.Errorf("json: %s", out)
	}
}

func TestCtlDrainAndRelease(t *testing.T) {
	f := newFakeAdmin(t)
	f.answer = `{"node":"gpu-1","drained":true}` + "\n"
	f.want(t, []string{"drain", "gpu-1"}, `POST /admin/v1/nodes/gpu-1/drain {"undo":false}`,
		"node gpu-1: gets no new work until --undo, or until the Edge restarts; what runs there goes on\n")
	f.answer = `{"node":"gpu-1","drained":false}` + "\n"
	f.want(t, []string{"drain", "gpu-1", "--undo"}, `POST /admin/v1/nodes/gpu-1/drain {"undo":true}`, "node gpu-1: new work may go there again\n")
	f.answer = `{"node":"n","adapter":"a","run_id":"r","released":1}` + "\n"
	f.want(t, []string{"place", "release", "n", "a", "r"}, `POST /admin/v1/places/release {"adapter":"a","force":false,"node":"n","run_id":"r"}`, "run r: 1 place of a on n released\n")
	f.want(t, []string{"place", "release", "n", "a", "r", "--force"}, `POST /admin/v1/places/release {"adapter":"a","force":true,"node":"n","run_id":"r"}`, "run r: 1 place of a on n released\n")
}
