package node

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// Whatever an Edge sends as a run's content: no panic, and a request that is sound in itself, or a bad_request.
func FuzzContent(f *testing.F) {
	for _, in := range []*pb.RunInput{{}, {Messages: []*pb.Message{{Role: "user", Parts: []*pb.Part{{Part: &pb.Part_Text{Text: "hi"}}}}}},
		{Messages: []*pb.Message{{Role: "user", Parts: []*pb.Part{{}}}}, OptionsJson: `{"max_tokens":7}`},
		{Messages: []*pb.Message{{Role: "assistant", ToolCalls: []*pb.ToolCall{{Id: "a", Name: "f", ArgumentsFragment: "{"}}}},
			Tools: []*pb.Tool{{Name: "f", ParametersJson: "{"}}, ToolChoiceJson: `"required"`}} {
		content, err := proto.Marshal(in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		req, err := runFromWire(&pb.RunRequest{RunId: "r", Adapter: "a", Target: "t"}, content, execution.Timers{FirstByte: time.Minute, Idle: time.Minute})
		if err != nil {
			if fault, ok := errors.AsType[*execution.Failure](err); !ok || fault.Code != execution.CodeBadRequest || fault.Text == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		if err := req.Check(); err != nil {
			t.Fatalf("accepted, and isn't sound: %v", err)
		}
	})
}
