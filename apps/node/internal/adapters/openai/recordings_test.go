package openai

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

func tiny(text, finish, usage string) adaptertest.Outcome {
	return adaptertest.Outcome{Model: "tiny", Text: text, Finish: finish, Usage: usage}
}

func answered(status int) adaptertest.Outcome {
	return adaptertest.Outcome{Code: execution.CodeUpstreamError, Status: status}
}

func brokeOff(model, text string) adaptertest.Outcome {
	return adaptertest.Outcome{Model: model, Text: text, Code: execution.CodeUpstreamTruncated, Status: 200}
}

func reasoned(usage string) adaptertest.Outcome {
	o := tiny(fortyTwo, "stop", usage)
	o.Reasoning = thought
	return o
}

func weather(id, arguments, usage string) adaptertest.Outcome {
	o := tiny("", "tool_calls", usage)
	o.Calls = []execution.ToolCall{{ID: id, Name: "get_weather", Arguments: arguments}}
	return o
}

// recordings says what a run makes of each recorded answer. The counts were taken from the recordings by another
// program. llama.cpp leaves out the blank before the first word, Ollama doesn't.
func recordings() map[string]adaptertest.Outcome {
	const three = "Hello from the"
	slow := tiny(counted(12), "length", "8/12/-/-")
	slow.Model = "slow"
	byProvider := map[string]map[string]adaptertest.Outcome{
		"llamacpp-0.7.0": {
			"200-right-key":                  tiny(three, "length", "6/3/0/-"),
			"401-no-key":                     answered(401),
			"401-wrong-key":                  answered(401),
			"503-loading":                    answered(503),
			"chat-400-bad-type":              answered(400),
			"chat-400-invalid-json":          answered(400),
			"chat-400-no-messages":           answered(400),
			"chat-400-too-long":              answered(400),
			"chat-cancel":                    brokeOff("tiny", ticks(2)[1:]),
			"chat-logprobs-long-lines":       tiny(three, "length", ""),
			"chat-n2":                        tiny(three+" tiny", "length", "6/4/2/-"),
			"chat-reasoning":                 reasoned("9/22/8/-"),
			"chat-server-killed-midstream":   brokeOff("tiny", ticks(25)[1:]),
			"chat-stop":                      tiny(counted(4)[1:], "stop", "8/5/2/-"),
			"chat-stream-count400":           tiny(counted(400)[1:], "length", ""),
			"chat-stream-length":             tiny(ticks(8)[1:], "length", ""),
			"chat-stream-n2":                 tiny(three+" tiny", "length", ""),
			"chat-stream-queued-no-bytes-4s": tiny("Hello from", "length", ""),
			"chat-stream-reasoning":          reasoned("9/22/8/-"),
			"chat-stream-slow-usage":         tiny(counted(12)[1:], "length", "8/12/7/-"),
			"chat-stream-sse-ping":           tiny(three+" tiny", "length", ""),
			"chat-stream-tool":               weather("XpvoUSeUPJHsq4BVnnIPAr3gFpUvkEDV", `{"city": "Seoul", "unit": "celsius"}`, "337/13/336/-"),
			"chat-stream-usage":              tiny(greeting, "stop", "6/39/5/-"),
			"chat-stream":                    tiny(greeting, "stop", ""),
			"chat-tool-result":               tiny(greeting, "stop", "434/39/336/-"),
			"chat-tool":                      weather("RPFbwdwMqrxVMOiZcDCKJa0hjSnW246w", `{"city": "Seoul", "unit": "celsius"}`, "337/13/71/-"),
			"chat-unknown-model-accepted":    tiny("Hello from", "length", "6/2/5/-"),
			"chat":                           tiny(greeting, "stop", "6/39/2/-"),
			"connection-close":               tiny(three, "length", "6/3/5/-"),
			"expect-100":                     tiny(three, "length", "6/3/5/-"),
			"gzip-asked":                     tiny(greeting, "stop", "6/39/2/-"),
			"keep-alive-stream-twice":        tiny(three, "length", ""),
			"keep-alive-twice":               tiny(three, "length", "6/3/5/-"),
			"request-1300k":                  tiny(three, "length", "6/3/5/-"),
			"request-chunked":                tiny(three, "length", "6/3/5/-"),
		},
		"ollama-0.17.4": {
			"chat-400-bad-type":            answered(400),
			"chat-400-invalid-json":        answered(400),
			"chat-400-no-messages":         answered(400),
			"chat-404-model-stream":        answered(404),
			"chat-404-model":               answered(404),
			"chat-503-busy":                answered(503),
			"chat-cancel":                  brokeOff("slow", ticks(3)),
			"chat-reasoning":               answered(400),
			"chat-runner-killed-midstream": brokeOff("slow", ticks(22)), // the engine died, and HTTP ended well (ST-18)
			"chat-stop":                    tiny(counted(4), "stop", "8/5/-/-"),
			"chat-stream-count400":         tiny(counted(400), "stop", ""),
			"chat-stream-length":           tiny(ticks(8), "length", ""),
			"chat-stream-reasoning":        reasoned("9/22/-/-"),
			"chat-stream-slow-usage":       slow,
			"chat-stream-tool":             weather("call_3bqku51o", `{"city":"Seoul","unit":"celsius"}`, "176/13/-/-"),
			"chat-stream-usage":            tiny(greeting, "stop", "6/39/-/-"),
			"chat-stream":                  tiny(greeting, "stop", ""),
			"chat-tool":                    weather("call_voj2l7kf", `{"city":"Seoul","unit":"celsius"}`, "176/13/-/-"),
			"chat":                         tiny(greeting, "stop", "6/39/-/-"),
			"connection-close":             tiny(three, "length", "6/3/-/-"),
			"cors-forbidden-origin":        answered(403),
			"expect-100":                   tiny(three, "length", "6/3/-/-"),
			"gzip-request-body":            answered(400),
			"keep-alive-stream-twice":      tiny(three, "length", ""),
			"keep-alive-twice":             tiny(three, "length", "6/3/-/-"),
			"request-1300k":                tiny(three, "length", "6/3/-/-"),
			"request-chunked":              tiny(three, "length", "6/3/-/-"),
		},
	}
	out := map[string]adaptertest.Outcome{}
	for provider, rows := range byProvider {
		for name, want := range rows {
			out[provider+"/"+name] = want
		}
	}
	return out
}
