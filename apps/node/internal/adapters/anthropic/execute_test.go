package anthropic

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
		Owns:       func(method, path string) bool { return method == "POST" && path == "/v1/messages" },
		Recordings: recordings(),
		// Every other one is cut in TestRecordingsCutAnywhere.
		Cut:         []string{"llamacpp-0.7.0/messages", "llamacpp-0.7.0/messages-stream-tool"},
		Ended:       ended,
		Variants:    adaptertest.SSEVariants,
		ContentType: "text/event-stream",
		Say:         say,
		End:         end,
		Streams:     streams(),
		Limit:       sse.DefaultLimit,
	}
}

// ended reports whether a stop reason or the end mark stands in a body, in a whole event.
func ended(body []byte) bool {
	for event := range strings.SplitAfterSeq(string(body), "\n\n") {
		if strings.HasSuffix(event, "\n\n") && (strings.Contains(event, `"stop_reason":"`) || strings.Contains(event, `"message_stop"`)) {
			return true
		}
	}
	return false
}

// eventOf is an event as the API writes it.
func eventOf(kind, members string) string {
	return fmt.Sprintf("event: %s\ndata: {\"type\":%q%s}\n\n", kind, kind, members)
}

// say is an event that tells a text.
func say(text string) string {
	quoted, _ := json.Marshal(text)
	return deltaOf(0, `{"type":"text_delta","text":`+string(quoted)+`}`)
}

func deltaOf(index int, delta string) string {
	return eventOf("content_block_delta", fmt.Sprintf(`,"index":%d,"delta":%s`, index, delta))
}

func open(index int, block string) string {
	return eventOf("content_block_start", fmt.Sprintf(`,"index":%d,"content_block":%s`, index, block))
}

func closed(index int) string {
	return eventOf("content_block_stop", fmt.Sprintf(`,"index":%d`, index))
}

// stopped tells why the answer ends, and what it took.
func stopped(reason, usage string) string {
	return eventOf("message_delta", fmt.Sprintf(`,"delta":{"stop_reason":%q,"stop_sequence":null}%s`, reason, usage))
}

var (
	begin = eventOf("message_start", `,"message":{"id":"m","type":"message","role":"assistant","content":[],"model":"fake","stop_reason":null,"stop_sequence":null}`)
	done  = eventOf("message_stop", "")
	end   = stopped("end_turn", "") + done
)

func TestNormalized(t *testing.T) { adaptertest.RunNormalized(t, build, normalized()) }
