package ollama

import (
	"strconv"
	"strings"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/packages/go/execution"
)

// What the model of the recordings says; e2e/testdata/fixtures/README.md has it.
const (
	greeting = "Hello from the tiny test model. It streams one piece at a time: naïve café, 한국어 🙂\ndata: not an event\n\ndone!"
	thought  = "Okay so someone asks something; let me reason about this slowly.\n"
	fortyTwo = "The answer is forty-two.\n\n"
)

// counted returns " 1 2 … n".
func counted(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		b.WriteString(" " + strconv.Itoa(i))
	}
	return b.String()
}

// ticks returns " tick tock tack tick…" of n words.
func ticks(n int) string {
	return strings.Join(strings.SplitAfter(strings.Repeat(" tick tock tack", n/3+1), "k")[:n], "")
}

// by is what a model said in a recording.
func by(model, text, finish, usage string) adaptertest.Outcome {
	return adaptertest.Outcome{Model: model, Text: text, Finish: finish, Usage: usage}
}

func answered(status int) adaptertest.Outcome {
	return adaptertest.Outcome{Code: execution.CodeUpstreamError, Status: status}
}

func failed200(code execution.Code, model, text string) adaptertest.Outcome {
	return adaptertest.Outcome{Model: model, Text: text, Code: code, Status: 200}
}

func weather(id string) adaptertest.Outcome {
	o := by("tiny", "", "tool_calls", "176/13/-/-")
	o.Calls = []execution.ToolCall{{ID: id, Name: "get_weather", Arguments: `{"city":"Seoul","unit":"celsius"}`}}
	return o
}

// recordings says what a run makes of each recorded answer of the native dialect, those of /api/generate among them.
// The counts were taken from the recordings by another program.
func recordings() map[string]adaptertest.Outcome {
	reasoned := by("tiny", fortyTwo, "stop", "9/22/-/-")
	reasoned.Reasoning = thought
	out := map[string]adaptertest.Outcome{}
	for name, want := range map[string]adaptertest.Outcome{
		"load-empty-prompt":                   failed200(execution.CodeUpstreamError, "tiny", ""),
		"native-chat":                         by("tiny", greeting, "stop", "6/39/-/-"),
		"native-chat-400-bad-type":            answered(400),
		"native-chat-400-empty-body":          answered(400),
		"native-chat-400-invalid-json":        answered(400),
		"native-chat-404":                     answered(404),
		"native-chat-503-busy":                answered(503), // OL-02
		"native-chat-cancel":                  failed200(execution.CodeUpstreamTruncated, "slow", ticks(6)),
		"native-chat-queued-behind-others":    by("slow", greeting, "stop", "6/39/-/-"),
		"native-chat-runner-killed-midstream": failed200(execution.CodeUpstreamError, "slow", ticks(19)), // ST-23
		"native-chat-stream":                  by("tiny", greeting, "stop", "6/39/-/-"),
		"native-chat-stream-length":           by("tiny", ticks(6), "length", "8/6/-/-"),
		"native-chat-stream-slow":             by("slow", counted(10), "length", "8/10/-/-"),
		"native-chat-stream-think":            reasoned,
		"native-chat-stream-tool":             weather("call_ld06j6z2"),
		"native-chat-tool":                    weather("call_2zi22uzs"),
		"native-chat-tool-result":             by("tiny", greeting, "stop", "272/39/-/-"),
		"native-generate-70k-ndjson-line":     by("tiny", "Hello from", "length", "19804/2/-/-"),
		"native-generate-raw":                 by("tiny", " once upon some raw prompt there was text.\t", "stop", "2/10/-/-"),
		"native-generate-stream":              by("tiny", greeting, "stop", "6/39/-/-"),
		"unload":                              failed200(execution.CodeUpstreamError, "tiny", ""),
	} {
		out["ollama-0.17.4/"+name] = want
	}
	return out
}
