package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/sse"
)

func normalized() adaptertest.Normalized {
	return adaptertest.Normalized{
		Owns:        func(method, path string) bool { return method == "POST" && path == "/v1/chat/completions" },
		Recordings:  recordings(),
		Cut:         []string{"llamacpp-0.7.0/keep-alive-stream-twice", "ollama-0.17.4/chat-stream-tool", "llamacpp-0.7.0/chat-stop"},
		Ended:       ended,
		Variants:    adaptertest.SSEVariants,
		ContentType: "text/event-stream",
		Say:         say,
		End:         end,
		Streams:     streams(),
		Limit:       sse.DefaultLimit,
	}
}

// ended reports whether a finish reason or the end mark stands in a body, in a whole event.
func ended(body []byte) bool {
	for event := range strings.SplitAfterSeq(string(body), "\n\n") {
		if strings.HasSuffix(event, "\n\n") && (strings.Contains(event, `"finish_reason":"`) || event == "data: [DONE]\n\n") {
			return true
		}
	}
	return false
}

// say is a chunk that tells a text.
func say(text string) string {
	quoted, _ := json.Marshal(text)
	return delta(`{"content":` + string(quoted) + `}`)
}

func delta(d string) string {
	return `data: {"id":"c","object":"chat.completion.chunk","model":"fake","choices":[{"index":0,"delta":` + d + `,"finish_reason":null}]}` + "\n\n"
}

// stopped is a chunk that only ends the answer.
func stopped(reason string) string {
	return fmt.Sprintf(`data: {"model":"fake","choices":[{"index":0,"delta":{},"finish_reason":%q}]}`, reason) + "\n\n"
}

const done = "data: [DONE]\n\n"

var end = stopped("stop") + done

func TestNormalized(t *testing.T) { adaptertest.RunNormalized(t, build, normalized()) }
