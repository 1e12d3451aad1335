package node

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// An acknowledgement that the edge would end the link for isn't sent: thousands of streams may be on when a key is revoked.
// (found by attack)
func TestAnAcknowledgementFits(t *testing.T) {
	const edgeTakes = 64 << 10
	for _, length := range []int{1, 30, 128} {
		var runs []string
		for len(runs) < 3000 {
			runs = append(runs, strings.Repeat("r", length)+fmt.Sprint(len(runs)))
			if ack := revokeAck(1<<63, runs); ack != nil && (proto.Size(ack) > edgeTakes || len(ack.GetCommittedRunIds()) != len(runs)) {
				t.Fatalf("%d runs: %d bytes, %d named", len(runs), proto.Size(ack), len(ack.GetCommittedRunIds()))
			} else if ack == nil && len(runs) < 400 {
				t.Fatalf("%d runs aren't acknowledged", len(runs))
			}
			if len(runs) > 600 {
				runs = append(runs, make([]string, 200)...)
			}
		}
	}
}
