package service

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// encodeInput makes the body of a run's work stream. It is done once: what is sent again is the same bytes.
func encodeInput(req *execution.Request, limit int64) (*bytes.Reader, *execution.Failure) {
	choice, err := jsonOf(req.ToolChoice, req.ToolChoice == execution.ToolChoice{})
	if err != nil {
		return nil, badRequest("tool_choice: can't be encoded")
	}
	options, err := jsonOf(&req.Options, false)
	if err != nil {
		return nil, badRequest("options: can't be encoded")
	}
	m := &pb.RunInput{
		Messages:       make([]*pb.Message, len(req.Messages)),
		Tools:          make([]*pb.Tool, len(req.Tools)),
		ToolChoiceJson: choice, OptionsJson: options,
	}
	for i := range req.Messages {
		m.Messages[i] = messageOf(&req.Messages[i])
	}
	for i, t := range req.Tools {
		m.Tools[i] = &pb.Tool{Name: t.Name, Description: t.Description, ParametersJson: string(t.Parameters)}
	}
	// The size first: a request that is too large isn't copied.
	if n := int64(proto.Size(m)); n > limit {
		return nil, execution.Failf(execution.CodeBodyTooLarge, execution.OriginEdge,
			"the run's content has %d bytes, %d are allowed", n, limit)
	}
	raw, err := proto.Marshal(m)
	if err != nil {
		return nil, badRequest("the run's content isn't UTF-8 throughout")
	}
	return bytes.NewReader(raw), nil
}

// jsonOf encodes v, "" when it says nothing.
func jsonOf(v any, empty bool) (string, error) {
	if empty {
		return "", nil
	}
	raw, err := json.Marshal(v)
	if string(raw) == "{}" {
		raw = nil
	}
	return string(raw), err
}

func messageOf(in *execution.Message) *pb.Message {
	m := &pb.Message{Role: string(in.Role), ToolCallId: in.ToolCallID, Name: in.Name, Reasoning: in.Reasoning, Failed: in.Failed}
	for _, p := range in.Parts {
		if p.Image != nil {
			m.Parts = append(m.Parts, &pb.Part{Part: &pb.Part_Image{Image: &pb.Image{MediaType: p.Image.MediaType, Data: p.Image.Data}}})
			continue
		}
		m.Parts = append(m.Parts, &pb.Part{Part: &pb.Part_Text{Text: p.Text}})
	}
	for i, c := range in.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, &pb.ToolCall{Index: uint32(i), Id: c.ID, Name: c.Name, ArgumentsFragment: c.Arguments})
	}
	return m
}

// badRequest is the failure of a request that says something wrong; nothing of it was sent.
func badRequest(text string) *execution.Failure {
	return &execution.Failure{Code: execution.CodeBadRequest, Origin: execution.OriginCaller, Text: text, NothingSent: true}
}

// maxID is the longest id on the wire, in bytes.
const maxID = 64

// isID reports whether s can stand as an id on the wire.
func isID(s string) bool {
	if s == "" || len(s) > maxID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if ('a' > c || c > 'z') && ('A' > c || c > 'Z') && ('0' > c || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// check refuses a spec that says something wrong.
func (s *RunSpec) check() *execution.Failure {
	switch {
	case !isID(s.RunID):
		return badRequest("run_id: must have 1 to 64 letters, digits or any of . _ -")
	case s.SessionID != "" && !isID(s.SessionID):
		return badRequest("session_id: must have at most 64 letters, digits or any of . _ -")
	case s.Adapter == "":
		return badRequest("adapter: missing; name the adapter that is to run this")
	case s.Input == nil:
		return badRequest("messages: missing or empty")
	}
	for key, value := range s.Metadata {
		if key == "" || !utf8.ValidString(key) || !utf8.ValidString(value) {
			return badRequest("metadata: keys must not be empty, and keys and values must be UTF-8")
		}
	}
	return checkInput(s.Input, s.Target)
}

// checkInput refuses what no provider could be told.
func checkInput(input *execution.Request, target string) *execution.Failure {
	req := *input
	req.Target = target
	return execution.AsFailure(req.Check(), execution.OriginCaller)
}
