package loopback

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/packages/go/execution"
)

// run returns a request of a run whose user says text.
func run(text string, change ...func(*execution.Request)) *execution.Request {
	r := adaptertest.Ask("loopback", text)
	for _, f := range change {
		f(r)
	}
	return r
}

func withTools(r *execution.Request) {
	r.Tools = []execution.Tool{
		{Name: "get_weather", Parameters: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["celsius"]}}}`)},
		{Name: "now"},
	}
}

func choose(c execution.ToolChoice) func(*execution.Request) {
	return func(r *execution.Request) { withTools(r); r.ToolChoice = c }
}

func told(text, finish, usage string) adaptertest.Outcome {
	return adaptertest.Outcome{Model: "loopback", Text: text, Finish: finish, Usage: usage}
}

func broken(text string, code execution.Code, status int) adaptertest.Outcome {
	return adaptertest.Outcome{Text: text, Code: code, Status: status}
}

// cut is an answer that began, and broke off.
func cut(text string, code execution.Code) adaptertest.Outcome {
	return adaptertest.Outcome{Model: "loopback", Text: text, Code: code}
}

// called is an answer that calls tools; the ids depend on the request alone.
func called(t *testing.T, r *execution.Request, usage string, names ...string) adaptertest.EmbeddedRun {
	t.Helper()
	x, err := provider(t).jobOf(r)
	if err != nil {
		t.Fatal(err)
	}
	o := told("", "tool_calls", usage)
	for i, name := range names {
		c := execution.ToolCall{ID: "call_" + x.id[:8] + "_" + itoa(i), Name: name, Arguments: "{}"}
		if name == "get_weather" {
			c.Arguments = `{"city":"loopback","unit":"celsius"}`
		}
		o.Calls = append(o.Calls, c)
	}
	return adaptertest.EmbeddedRun{Request: r, Want: o}
}

func TestRuns(t *testing.T) {
	everything := strings.Join(sentence(), "")
	limit := func(n int64) func(*execution.Request) {
		return func(r *execution.Request) { r.Options.MaxTokens = &n }
	}
	thoughtful := told("[x] Hello", "stop", "5/4/-/2")
	thoughtful.Reasoning = " hm1 hm2"
	outcomes := map[string]adaptertest.EmbeddedRun{
		"plain":       {Request: run("hi"), Want: told(everything, "stop", "1/23/-/0")},
		"tokens":      {Request: run("hi there loopback: tokens=3"), Want: told("Hello from the", "stop", "4/3/-/0")},
		"no tokens":   {Request: run("loopback: tokens=0"), Want: told("", "stop", "2/0/-/0")},
		"limit":       {Request: run("hi", limit(2)), Want: told("Hello from", "length", "1/2/-/0")},
		"reasoning":   {Request: run("a loopback: reasoning=2 tokens=2 mark=x"), Want: thoughtful},
		"usage off":   {Request: run("loopback: tokens=1 usage=off"), Want: told("Hello", "stop", "")},
		"fail":        {Request: run("loopback: fail=503"), Want: broken("", execution.CodeUpstreamError, 503)},
		"cut":         {Request: run("loopback: cut=2"), Want: cut("Hello from", execution.CodeUpstreamTruncated)},
		"cut at once": {Request: run("loopback: cut=0"), Want: cut("", execution.CodeUpstreamTruncated)},
		"cut at end":  {Request: run("loopback: tokens=2 cut=2"), Want: cut("Hello from", execution.CodeUpstreamTruncated)},
		"garbage":     {Request: run("loopback: garbage"), Want: broken("", execution.CodeAdapterDecode, 0)},
		"unknown":     {Request: run("loopback: tokns=2"), Want: broken("", execution.CodeUpstreamError, 400)},
		"tools, none": {Request: run("loopback: tools"), Want: broken("", execution.CodeUpstreamError, 400)},
		"no messages": {Request: &execution.Request{Target: "loopback"}, Want: broken("", execution.CodeBadRequest, 0)},
		"tool":        called(t, run("loopback: tools", withTools), "2/0/-/0", "get_weather"),
		"tools":       called(t, run("loopback: tools=3", withTools), "2/0/-/0", "get_weather", "now", "get_weather"),
		"required":    called(t, run("hi", choose(execution.ToolChoice{Mode: execution.ToolRequired})), "1/0/-/0", "get_weather"),
		"named":       called(t, run("hi", choose(execution.ToolChoice{Mode: execution.ToolNamed, Name: "now"})), "1/0/-/0", "now"),
		"auto":        {Request: run("hi loopback: tokens=1", choose(execution.ToolChoice{Mode: execution.ToolAuto})), Want: told("Hello", "stop", "3/1/-/0")},
		"none":        {Request: run("hi loopback: tokens=1", choose(execution.ToolChoice{Mode: execution.ToolNone})), Want: told("Hello", "stop", "3/1/-/0")},
		"last user": {Request: run("loopback: fail=500", func(r *execution.Request) {
			r.Messages = append(r.Messages, run("loopback: tokens=1").Messages...)
			r.Messages = append(r.Messages, execution.Message{Role: execution.RoleAssistant, Parts: []execution.Part{{Text: "loopback: fail=501"}}})
		}), Want: told("Hello", "stop", "6/1/-/0")},
		"image": {Request: run("loopback: tokens=1", func(r *execution.Request) {
			r.Messages[0].Parts = append(r.Messages[0].Parts, execution.Part{Image: &execution.Image{MediaType: "image/png", Data: []byte{1}}})
		}), Want: told("Hello", "stop", "2/1/-/0")},
		"marked":        {Request: run("loopback: mark=a tokens=2"), Want: told("[a] Hello", "stop", "3/2/-/0")},
		"another model": {Request: func() *execution.Request { r := run("loopback: tokens=1"); r.Target = "x"; return r }(), Want: func() adaptertest.Outcome { o := told("Hello", "stop", "2/1/-/0"); o.Model = "x"; return o }()},
	}
	adaptertest.RunEmbeddedRuns(t, adaptertest.EmbeddedRuns{
		New:      func(t testing.TB) execution.Executor { return provider(t) },
		Outcomes: outcomes,
		Endless:  func() *execution.Request { return run("loopback: tokens=100000 delay=2ms") },
	})
}

func TestRunOfUnknownModel(t *testing.T) {
	got, _, err := adaptertest.Execute(t, t.Context(), provider(t, "a"), run("hi"))
	if got.Code != execution.CodeUpstreamError || got.Status != 404 {
		t.Errorf("%v", err)
	}
	got, _, err = adaptertest.Execute(t, t.Context(), provider(t, "a"), func() *execution.Request { r := run("hi"); r.Target = "a"; return r }())
	if err != nil || got.Model != "a" {
		t.Errorf("%v, %+v", err, got)
	}
}

// CP-14: silence ends by the limits, each with its code; pauses within them don't count, and neither does nobody's.
func TestRunsInTime(t *testing.T) {
	timers := execution.Timers{FirstByte: 10 * time.Second, Idle: 5 * time.Second}
	for text, k := range map[string]struct {
		want execution.Code
		text string
		took time.Duration
	}{
		"loopback: first=11s":           {execution.CodeFirstByteTimeout, "", 10 * time.Second},
		"loopback: first=9s tokens=1":   {execution.CodeOK, "Hello", 9 * time.Second},
		"loopback: stall=1":             {execution.CodeIdleTimeout, "Hello", 5 * time.Second},
		"loopback: tokens=2 stall=2":    {execution.CodeIdleTimeout, "Hello from", 5 * time.Second},
		"loopback: stall=0":             {execution.CodeIdleTimeout, "", 5 * time.Second},
		"loopback: tokens=3 delay=4s":   {execution.CodeOK, "Hello from the", 12 * time.Second},
		"loopback: tokens=3 delay=6s":   {execution.CodeIdleTimeout, "", 5 * time.Second},
		"loopback: first=11s fail=500":  {execution.CodeFirstByteTimeout, "", 10 * time.Second},
		"loopback: first=1s fail=500":   {execution.CodeUpstreamError, "", time.Second},
		"loopback: reasoning=1 stall=1": {execution.CodeIdleTimeout, "", 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			got, _, err := adaptertest.Execute(t, t.Context(), provider(t), run(text, func(r *execution.Request) { r.Timers = timers }))
			if took := time.Since(began); got.Code != k.want || got.Text != k.text || took != k.took {
				t.Errorf("%s: %v, %q after %v", text, err, got.Text, took)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // 20 ms a token, as a stream has
		p, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if got, _, err := adaptertest.Execute(t, t.Context(), p, run("hi")); err != nil || time.Since(began) != 23*20*time.Millisecond {
			t.Errorf("%v, %+v after %v", err, got, time.Since(began))
		}
	})
}

// Refusals say when to come back, as the same answers of a tunnel do.
func TestRunRefusals(t *testing.T) {
	for status, after := range map[string]time.Duration{"429": time.Second, "503": time.Second, "500": 0, "400": 0} {
		_, _, err := adaptertest.Execute(t, t.Context(), provider(t), run("loopback: fail="+status))
		f, ok := errors.AsType[*execution.Failure](err)
		if !ok || f.RetryAfter != after || !strings.Contains(f.Text, "fail="+status) || f.NothingSent {
			t.Errorf("%s: %+v", status, err)
		}
	}
}

// The same content gets the same answer under every run id and session.
func TestRunsDependOnContentAlone(t *testing.T) {
	a := run("loopback: tools", withTools)
	b := run("loopback: tools", withTools)
	b.RunID, b.SessionID, b.Timers.Idle = "another", "session", time.Minute
	one, _, _ := adaptertest.Execute(t, t.Context(), provider(t), a)
	two, _, _ := adaptertest.Execute(t, t.Context(), provider(t), b)
	if one.Calls[0] != two.Calls[0] {
		t.Errorf("%+v and %+v", one.Calls, two.Calls)
	}
}
