package service

import (
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// message is one message from a node on a work stream, of either kind.
type message struct {
	step execution.Step // 0 = of a kind that this version doesn't know, which the grammar refuses
	seq  uint64

	body  []byte                  // of a tunnel's body; valid until the next read
	frame *pb.ProviderTunnelFrame // of a tunnel's other messages
	event *pb.RunEvent            // of a run
}

// read reads the next message of a stream that carries kind.
func read(s *transport.Stream, kind execution.Kind) (message, error) {
	if kind == execution.KindRun {
		e, err := s.ReadEvent()
		if err != nil {
			return message{}, err
		}
		return message{step: stepOfEvent(e), seq: e.GetSeq(), event: e}, nil
	}
	f, err := s.ReadTunnel()
	if err != nil {
		return message{}, err
	}
	return message{step: stepOfFrame(f), seq: f.Seq, body: f.Body, frame: f.Msg}, nil
}

// rejected is the content of a StepRejected.
func (m *message) rejected() *pb.Rejected {
	if m.event != nil {
		return m.event.GetRejected()
	}
	return m.frame.GetRejected()
}

// failure is the content of a StepError.
func (m *message) failure() *pb.Failure {
	if m.event != nil {
		return m.event.GetError()
	}
	return m.frame.GetError()
}

func stepOfFrame(f transport.Frame) execution.Step {
	if f.Msg == nil {
		return execution.StepBody
	}
	switch f.Msg.GetFrame().(type) {
	case *pb.ProviderTunnelFrame_Accepted:
		return execution.StepAccepted
	case *pb.ProviderTunnelFrame_Rejected:
		return execution.StepRejected
	case *pb.ProviderTunnelFrame_Head:
		return execution.StepHead
	case *pb.ProviderTunnelFrame_Usage:
		return execution.StepUsage
	case *pb.ProviderTunnelFrame_Metadata:
		return execution.StepMetadata
	case *pb.ProviderTunnelFrame_End:
		return execution.StepEnd
	case *pb.ProviderTunnelFrame_Error:
		return execution.StepError
	}
	return 0
}

func stepOfEvent(e *pb.RunEvent) execution.Step {
	switch e.GetEvent().(type) {
	case *pb.RunEvent_Accepted:
		return execution.StepAccepted
	case *pb.RunEvent_Rejected:
		return execution.StepRejected
	case *pb.RunEvent_Start:
		return execution.StepStart
	case *pb.RunEvent_Delta, *pb.RunEvent_ReasoningDelta, *pb.RunEvent_ToolCall:
		return execution.StepDelta
	case *pb.RunEvent_Usage:
		return execution.StepUsage
	case *pb.RunEvent_Complete:
		return execution.StepComplete
	case *pb.RunEvent_Cancelled:
		return execution.StepCancelled
	case *pb.RunEvent_Error:
		return execution.StepError
	}
	return 0
}
