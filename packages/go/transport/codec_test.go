package transport

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "iop/proto/iop"
)

// TestBodyTags holds what lets one codec serve both messages: equal numbers and types of seq and body.
func TestBodyTags(t *testing.T) {
	for _, m := range []proto.Message{&pb.WorkInput{}, &pb.ProviderTunnelFrame{}} {
		fields := m.ProtoReflect().Descriptor().Fields()
		if f := fields.ByName("seq"); byte(f.Number()) != tagSeq>>3 || f.Kind() != protoreflect.Uint64Kind {
			t.Errorf("%s.seq is number %d of kind %v", m.ProtoReflect().Descriptor().Name(), f.Number(), f.Kind())
		}
		if f := fields.ByName("body"); byte(f.Number()) != tagBody>>3 || f.Kind() != protoreflect.BytesKind {
			t.Errorf("%s.body is number %d of kind %v", m.ProtoReflect().Descriptor().Name(), f.Number(), f.Kind())
		}
	}
}

// TestAppendBodyIsWhatTheGeneratedCodeWrites compares the bytes, for both messages.
func TestAppendBodyIsWhatTheGeneratedCodeWrites(t *testing.T) {
	for _, seq := range []uint64{0, 1, 127, 128, 1 << 40} {
		for _, n := range []int{0, 1, 127, 128, MaxBody} {
			body := bytes.Repeat([]byte{7}, n)
			got := appendBody([]byte("before"), seq, body)
			for _, m := range []proto.Message{
				&pb.WorkInput{Seq: seq, Input: &pb.WorkInput_Body{Body: body}},
				&pb.ProviderTunnelFrame{Seq: seq, Frame: &pb.ProviderTunnelFrame_Body{Body: body}},
			} {
				want := append([]byte("before"), mustFrame(t, m)...)
				if !bytes.Equal(got, want) {
					t.Errorf("seq %d, %d bytes: differs from %T", seq, n, m)
				}
			}
		}
	}
}

// TestBodyFrameFits: a body frame with all its headers is at most 16 KiB.
func TestBodyFrameFits(t *testing.T) {
	if n := len(appendBody(nil, 1<<63, make([]byte, MaxBody))) + headerLen; n > 16<<10 {
		t.Errorf("the longest body frame has %d bytes", n)
	}
}

func TestSplitBodyIsASubSlice(t *testing.T) {
	raw := appendBody(nil, 9, []byte("hello"))[prefixLen:]
	seq, body, ok := splitBody(raw)
	if !ok || seq != 9 || string(body) != "hello" {
		t.Fatalf("%d %q %v", seq, body, ok)
	}
	raw[len(raw)-1] = '!'
	if string(body) != "hell!" {
		t.Error("the body was copied")
	}
}

func TestDecodeInput(t *testing.T) {
	raw := func(m *pb.WorkInput) []byte { return mustFrame(t, m)[prefixLen:] }
	in, err := decodeInput(raw(&pb.WorkInput{Seq: 3, Input: &pb.WorkInput_End{End: &pb.InputEnd{TotalBytes: 5}}}))
	if err != nil || in.Seq != 3 || in.End.GetTotalBytes() != 5 {
		t.Errorf("end: %+v %v", in, err)
	}
	_, err = decodeInput(raw(&pb.WorkInput{Seq: 1, Input: &pb.WorkInput_Body{Body: make([]byte, MaxBody+1)}}))
	wantFault(t, err, FrameTooLarge)
	_, err = decodeInput([]byte{0x7a, 1, 0}) // field 15: a kind of a later version
	wantFault(t, err, FrameUnknown)
	_, err = decodeInput([]byte{0x2a, 5, 0})
	wantFault(t, err, FrameMalformed)
}

func TestDecodeTunnelCaps(t *testing.T) {
	decode := func(m *pb.ProviderTunnelFrame) error {
		_, err := decodeTunnel(mustFrame(t, m)[prefixLen:])
		return err
	}
	head := &pb.TunnelHead{Status: 200, Headers: []*pb.Header{{Name: "a", Value: make([]byte, 100<<10)}}}
	if err := decode(&pb.ProviderTunnelFrame{Seq: 2, Frame: &pb.ProviderTunnelFrame_Head{Head: head}}); err != nil {
		t.Errorf("head of 100 KiB: %v", err)
	}
	body := &pb.ProviderTunnelFrame_Body{Body: make([]byte, 60<<10)}
	if err := decode(&pb.ProviderTunnelFrame{Seq: 2, Frame: body}); err != nil {
		t.Errorf("body of 60 KiB: %v", err)
	}
	body.Body = make([]byte, 70<<10)
	wantFault(t, decode(&pb.ProviderTunnelFrame{Seq: 2, Frame: body}), FrameTooLarge)
	meta := &pb.TunnelMetadata{Values: []*pb.KeyValue{{Key: "k", Value: string(make([]byte, 17<<10))}}}
	wantFault(t, decode(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Metadata{Metadata: meta}}), FrameTooLarge)
	wantFault(t, decode(&pb.ProviderTunnelFrame{Seq: 1}), FrameUnknown)
}

// TestWorkCapKnowsEveryWorkMessage: what isn't in the table can't be sent on a work stream.
func TestWorkCapKnowsEveryWorkMessage(t *testing.T) {
	for _, m := range []proto.Message{&pb.WorkOpen{}, &pb.WorkInput{}, &pb.ProviderTunnelFrame{}, &pb.RunEvent{}, &pb.NodeCommandResponse{}} {
		if workCap(m) == 0 {
			t.Errorf("%T has no cap", m)
		}
	}
	if workCap(&pb.Ready{}) != 0 {
		t.Error("a control message has a cap on work streams")
	}
}

// FuzzDecodeInput compares the hot decoder with the generated one: same verdict, same value.
func FuzzDecodeInput(f *testing.F) {
	f.Add(appendBody(nil, 1, []byte("x"))[prefixLen:])
	f.Add([]byte{0x08, 0x81, 0x00, 0x2a, 0})
	f.Add([]byte{0x2a, 1, 'a', 0x42, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want pb.WorkInput
		wantErr := proto.Unmarshal(raw, &want)
		got, err := decodeInput(raw)
		switch {
		case wantErr != nil:
			if err == nil {
				t.Fatal("decoded what proto refuses")
			}
		case want.Input == nil || len(want.GetBody()) > MaxBody:
			if err == nil {
				t.Fatal("took an unknown kind or a body over the cap")
			}
		case err != nil:
			t.Fatalf("refused what proto takes: %v", err)
		case got.Seq != want.Seq || !bytes.Equal(got.Body, want.GetBody()) || (got.End == nil) != (want.GetEnd() == nil):
			t.Fatalf("got %+v, want %v", got, &want)
		}
	})
}

// FuzzDecodeTunnel is FuzzDecodeInput for the other direction.
func FuzzDecodeTunnel(f *testing.F) {
	f.Add(appendBody(nil, 1, []byte("x"))[prefixLen:])
	f.Add([]byte{0x08, 1, 0x12, 0})
	f.Add([]byte{0x22, 3, 0x08, 0xc8, 1, 0x2a, 1, 'b'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > maxTunnelOther {
			return
		}
		var want pb.ProviderTunnelFrame
		wantErr := proto.Unmarshal(raw, &want)
		got, err := decodeTunnel(raw)
		if (err != nil) != (wantErr != nil || want.Frame == nil) {
			t.Fatalf("%v, proto says %v and %v", err, wantErr, &want)
		}
		if err != nil {
			return
		}
		_, isBody := want.Frame.(*pb.ProviderTunnelFrame_Body)
		if got.Seq != want.Seq || (got.Msg == nil) != isBody || !bytes.Equal(got.Body, want.GetBody()) {
			t.Fatalf("got %+v, want %v", got, &want)
		}
		if got.Msg != nil && !proto.Equal(got.Msg, &want) {
			t.Fatalf("got %v, want %v", got.Msg, &want)
		}
	})
}

// FuzzControl: no control message makes the decoders panic, and a kind over its cap is refused.
func FuzzControl(f *testing.F) {
	f.Add(mustFrame(f, &pb.NodeControl{Message: &pb.NodeControl_Heartbeat{Heartbeat: &pb.Heartbeat{Nonce: 1}}})[prefixLen:])
	f.Add(mustFrame(f, &pb.EdgeControl{Message: &pb.EdgeControl_Cancel{Cancel: &pb.CancelRequest{RunId: "r"}}})[prefixLen:])
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, b := memPair(0)
		h := &handler{fromNode: make(chan *pb.NodeControl, 1), fromEdge: make(chan *pb.EdgeControl, 1)}
		_ = NewEdgeLink(a, testConfig(), edgeSide{h}).handleControl(raw)
		_ = NewNodeLink(b, testConfig(), nodeSide{h}).handleControl(raw)
	})
}
