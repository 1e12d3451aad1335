package anthropic

import (
	"iop/apps/node/internal/adapters/adaptertest"
	"iop/packages/go/execution"
)

// What the model of the recordings says; e2e/testdata/fixtures/README.md has it.
const (
	greeting = "Hello from the tiny test model. It streams one piece at a time: naïve café, 한국어 🙂\ndata: not an event\n\ndone!"
	thought  = "Okay so someone asks something; let me reason about this slowly.\n"
	fortyTwo = "The answer is forty-two.\n\n"
)

func tiny(text, finish, usage string) adaptertest.Outcome {
	return adaptertest.Outcome{Model: "tiny", Text: text, Finish: finish, Usage: usage}
}

func answered(status int) adaptertest.Outcome {
	return adaptertest.Outcome{Code: execution.CodeUpstreamError, Status: status}
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

// recordings says what a run makes of each recorded answer. The counts of the input include what came from the cache:
// they are those that the same provider tells for the same prompt in OpenAI's dialect.
func recordings() map[string]adaptertest.Outcome {
	return map[string]adaptertest.Outcome{
		"llamacpp-0.7.0/200-x-api-key":            tiny("Hello from the", "length", "6/3/5/-"),
		"llamacpp-0.7.0/messages":                 tiny(greeting, "stop", "6/39/2/-"),
		"llamacpp-0.7.0/messages-stream":          tiny(greeting, "stop", "6/39/5/-"),
		"llamacpp-0.7.0/messages-stream-thinking": reasoned("9/22/8/-"),
		"llamacpp-0.7.0/messages-stream-tool":     weather("Z78V5OJWkTm4qOnNCNXhBzuLsmptBDie", `{"city": "Seoul", "unit": "celsius"}`, "337/13/336/-"),
		"ollama-0.17.4/messages":                  tiny(greeting, "stop", "6/39/-/-"),
		"ollama-0.17.4/messages-404":              answered(404),
		"ollama-0.17.4/messages-503-busy":         answered(503),
		"ollama-0.17.4/messages-stream":           tiny(greeting, "stop", "6/39/-/-"),
		"ollama-0.17.4/messages-stream-thinking":  reasoned("9/22/-/-"),
		"ollama-0.17.4/messages-stream-tool":      weather("call_sr1e67yd", `{"unit":"celsius","city":"Seoul"}`, "176/13/-/-"),
	}
}
