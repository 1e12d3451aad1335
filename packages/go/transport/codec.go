package transport

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "iop/proto/iop"
)

// The tags of a body message. WorkInput and ProviderTunnelFrame give the same numbers to seq and body, so that one
// codec serves both (a test holds it).
const (
	tagSeq  = 1<<3 | byte(protowire.VarintType)
	tagBody = 5<<3 | byte(protowire.BytesType)
)

// Caps of the kinds on a tunnel, checked after decoding.
const (
	maxTunnelBody  = 64 << 10
	maxTunnelOther = 16 << 10
)

// appendBody appends a body frame. It is what appendFrame does with the generated code, at a tenth of the cost.
func appendBody(b []byte, seq uint64, p []byte) []byte {
	n := 1 + protowire.SizeBytes(len(p))
	if seq != 0 {
		n += 1 + protowire.SizeVarint(seq)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	if seq != 0 {
		b = append(b, tagSeq)
		b = protowire.AppendVarint(b, seq)
	}
	b = append(b, tagBody)
	return protowire.AppendBytes(b, p)
}

// splitBody decodes a body message as every writer writes it: seq, then body, nothing else. The body is a sub-slice
// of b. Any other message, a broken one among them, is not ok and left to the generated code.
func splitBody(b []byte) (seq uint64, body []byte, ok bool) {
	if len(b) > 0 && b[0] == tagSeq {
		v, n := protowire.ConsumeVarint(b[1:])
		if n < 0 {
			return 0, nil, false
		}
		seq, b = v, b[1+n:]
	}
	if len(b) == 0 || b[0] != tagBody {
		return 0, nil, false
	}
	body, n := protowire.ConsumeBytes(b[1:])
	if n < 0 || 1+n != len(b) {
		return 0, nil, false
	}
	return seq, body, true
}

// decodeInput decodes one WorkInput.
func decodeInput(b []byte) (Input, error) {
	if seq, body, ok := splitBody(b); ok {
		return checkInput(Input{Seq: seq, Body: body})
	}
	var m pb.WorkInput
	if err := unmarshal(b, &m); err != nil {
		return Input{}, err
	}
	switch v := m.Input.(type) {
	case *pb.WorkInput_Body:
		return checkInput(Input{Seq: m.Seq, Body: v.Body})
	case *pb.WorkInput_End:
		return Input{Seq: m.Seq, End: v.End}, nil
	}
	return Input{}, frameErrorf(FrameUnknown, "WorkInput of an unknown kind")
}

func checkInput(in Input) (Input, error) {
	if len(in.Body) > MaxBody {
		return Input{}, frameErrorf(FrameTooLarge, "input body of %d bytes over the cap of %d", len(in.Body), MaxBody)
	}
	return in, nil
}

// decodeTunnel decodes one ProviderTunnelFrame.
func decodeTunnel(b []byte) (Frame, error) {
	if seq, body, ok := splitBody(b); ok {
		return checkTunnel(Frame{Seq: seq, Body: body}, len(b), maxTunnelBody)
	}
	m := new(pb.ProviderTunnelFrame)
	if err := unmarshal(b, m); err != nil {
		return Frame{}, err
	}
	switch v := m.Frame.(type) {
	case nil:
		return Frame{}, frameErrorf(FrameUnknown, "ProviderTunnelFrame of an unknown kind")
	case *pb.ProviderTunnelFrame_Body:
		return checkTunnel(Frame{Seq: m.Seq, Body: v.Body}, len(b), maxTunnelBody)
	case *pb.ProviderTunnelFrame_Head:
		return Frame{Seq: m.Seq, Msg: m}, nil
	}
	return checkTunnel(Frame{Seq: m.Seq, Msg: m}, len(b), maxTunnelOther)
}

func checkTunnel(f Frame, n, max int) (Frame, error) {
	if n > max {
		return Frame{}, frameErrorf(FrameTooLarge, "tunnel frame of %d bytes over its kind's cap of %d", n, max)
	}
	return f, nil
}

// workCap returns the cap of a message on a work stream, 0 for what doesn't belong there.
func workCap(m proto.Message) int {
	switch m := m.(type) {
	case *pb.WorkOpen:
		return MaxOpen
	case *pb.WorkInput:
		return MaxInput
	case *pb.ProviderTunnelFrame:
		switch m.Frame.(type) {
		case *pb.ProviderTunnelFrame_Head:
			return MaxTunnelFrame
		case *pb.ProviderTunnelFrame_Body:
			return maxTunnelBody
		}
		return maxTunnelOther
	case *pb.RunEvent:
		return MaxRunEvent
	case *pb.NodeCommandResponse:
		return MaxCommandResponse
	}
	return 0
}
