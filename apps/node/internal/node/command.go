package node

import (
	"fmt"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// maxCommands is how many commands a connection may have in work; they take no place.
const maxCommands = 4

// commandHandler returns what answers a type of command, or nil. It is the closed set: a new command is a case here
// and a row in command_test.go.
func commandHandler(t pb.CommandType) func(*Session, *pb.NodeCommandResponse) {
	switch t {
	case pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS:
		return (*Session).transportStatus
	}
	return nil
}

// command answers one command: accepted and its result, or rejected.
func (s *Session) command(stream *transport.Stream, req *pb.NodeCommandRequest) {
	handle, f := s.admitCommand(req)
	if f != nil {
		s.refuse(stream, req.GetCommandId(), f, &pb.NodeCommandResponse{
			Seq: 1, SessionId: req.GetSessionId(), Response: &pb.NodeCommandResponse_Rejected{Rejected: rejection(f)}})
		return
	}
	defer func() { <-s.commands }()
	result := &pb.NodeCommandResponse{Seq: 2, SessionId: req.GetSessionId()}
	handle(s, result)
	accepted := &pb.NodeCommandResponse{Seq: 1, SessionId: req.GetSessionId(),
		Response: &pb.NodeCommandResponse_Accepted{Accepted: &pb.Accepted{SessionId: req.GetSessionId()}}}
	if err := stream.Append(accepted); err != nil {
		return
	}
	s.answer(stream, result)
}

// admitCommand checks a command; without a failure it took one of the connection's commands.
func (s *Session) admitCommand(req *pb.NodeCommandRequest) (func(*Session, *pb.NodeCommandResponse), *execution.Failure) {
	if !validID(req.GetCommandId()) {
		return nil, execution.Failf(execution.CodeBadRequest, execution.OriginEdge, "command_id must be 1 to 64 of A-Z a-z 0-9 . _ -")
	}
	handle := commandHandler(req.GetType())
	if handle == nil {
		return nil, execution.Failf(execution.CodeBadRequest, execution.OriginNode, "%s", unsupported(req.GetType()))
	}
	s.x.mu.Lock()
	dead := s.x.tombs.has(req.GetCommandId(), time.Now())
	s.x.mu.Unlock()
	if dead {
		return nil, &execution.Failure{Code: execution.CodeCancelled, Origin: execution.OriginCaller, Text: "cancelled before it started"}
	}
	select {
	case s.commands <- struct{}{}:
		return handle, nil
	default:
		return nil, execution.Failf(execution.CodeOverloaded, execution.OriginNode, "%d commands are in work", maxCommands)
	}
}

// unsupported says why a command that isn't in the closed set is refused.
func unsupported(t pb.CommandType) string {
	switch t {
	case pb.CommandType_COMMAND_TYPE_CAPABILITIES, pb.CommandType_COMMAND_TYPE_OLLAMA_API:
		return fmt.Sprintf("this version doesn't have the command %s", t)
	}
	return fmt.Sprintf("there is no command %d", t)
}

// transportStatus says how the link is.
func (s *Session) transportStatus(out *pb.NodeCommandResponse) {
	s.x.mu.Lock()
	running := len(s.x.running)
	s.x.mu.Unlock()
	out.Response = &pb.NodeCommandResponse_TransportStatus{TransportStatus: &pb.TransportStatus{
		ConnectionGeneration: s.generation,
		LinkAgeMs:            time.Since(s.since).Milliseconds(),
		OpenStreams:          int32(s.link.Status().OpenStreams),
		InFlight:             int32(running),
	}}
}
