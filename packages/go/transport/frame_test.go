package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// TestFrameBytes states the framing as bytes: four bytes of length, big-endian, then the message.
func TestFrameBytes(t *testing.T) {
	var out bytes.Buffer
	if err := WriteMessage(&out, &pb.RegisterRequest{ProtocolMin: 1, ProtocolMax: 1, Token: "ab"}); err != nil {
		t.Fatal(err)
	}
	want := []byte{0, 0, 0, 8, 0x08, 1, 0x10, 1, 0x1a, 2, 'a', 'b'}
	if !bytes.Equal(out.Bytes(), want) {
		t.Fatalf("frame % x, want % x", out.Bytes(), want)
	}
}

func TestReadMessageOneByteAtATime(t *testing.T) {
	raw := mustFrame(t, &pb.RegisterRequest{ProtocolMin: 1, ProtocolMax: 3, Token: "secret"})
	var m pb.RegisterRequest
	if err := ReadMessage(iotest.OneByteReader(bytes.NewReader(raw)), MaxRegisterRequest, &m); err != nil {
		t.Fatal(err)
	}
	if m.ProtocolMax != 3 || m.Token != "secret" {
		t.Fatalf("got %v", &m)
	}
}

// TestReadMessageIsExact: a read-ahead would swallow the multiplexer's first bytes.
func TestReadMessageIsExact(t *testing.T) {
	raw := append(mustFrame(t, &pb.RegisterProof{Proof: []byte("p")}), "rest"...)
	r := bytes.NewReader(raw)
	if err := ReadMessage(r, 256, new(pb.RegisterProof)); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "rest" {
		t.Fatalf("%q left, want %q", rest, "rest")
	}
}

func TestReadMessageTruncatedAtEveryOffset(t *testing.T) {
	raw := mustFrame(t, &pb.RegisterRequest{ProtocolMin: 1, Token: "token"})
	for n := range raw {
		err := ReadMessage(bytes.NewReader(raw[:n]), MaxRegisterRequest, new(pb.RegisterRequest))
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if err != want {
			t.Errorf("cut after %d bytes: %v, want %v", n, err, want)
		}
	}
}

// badPrefixes are lengths that must be refused before memory is reserved (TU-28, E31).
func badPrefixes(limit int) map[uint32]FrameFault {
	return map[uint32]FrameFault{
		0:                 FrameEmpty,
		uint32(limit) + 1: FrameTooLarge,
		0x7FFFFFFF:        FrameTooLarge,
		0xFFFFFFFF:        FrameTooLarge,
	}
}

// TU-28, E31: a length is checked before memory is reserved for it.
func TestReadMessageBadLength(t *testing.T) {
	for length, fault := range badPrefixes(MaxRegisterRequest) {
		raw := binary.BigEndian.AppendUint32(nil, length)
		var m pb.RegisterRequest
		var err error
		patience.Allocated(t, MaxRegisterRequest/2, func() {
			err = ReadMessage(bytes.NewReader(raw), MaxRegisterRequest, &m)
		})
		wantFault(t, err, fault)
	}
}

func TestReadMessageMalformed(t *testing.T) {
	raw := []byte{0, 0, 0, 2, 0x1a, 0xff} // a string without its end
	wantFault(t, ReadMessage(bytes.NewReader(raw), 100, new(pb.RegisterRequest)), FrameMalformed)
}

func TestWriteMessageRefusesWhatNobodyMayRead(t *testing.T) {
	wantFault(t, WriteMessage(io.Discard, &pb.RegisterProof{}), FrameEmpty)
	wantFault(t, WriteMessage(io.Discard, &pb.RegisterRequest{Token: strings.Repeat("x", maxAnyFrame)}), FrameTooLarge)
	wantFault(t, WriteMessage(io.Discard, &pb.RegisterRequest{Token: "\xff"}), FrameMalformed)
}

func TestWriteMessageReturnsTheWritersError(t *testing.T) {
	broken := errors.New("broken")
	err := WriteMessage(writerFunc(func([]byte) (int, error) { return 0, broken }), &pb.RegisterProof{Proof: []byte{1}})
	if err != broken {
		t.Fatalf("got %v", err)
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, 8, 1})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m pb.RegisterResponse
		if err := ReadMessage(bytes.NewReader(raw), 1<<10, &m); err != nil {
			return
		}
		again, err := appendFrame(nil, &m, 1<<10)
		if err != nil { // padded varints may shrink a message to nothing
			return
		}
		var n pb.RegisterResponse
		if err := ReadMessage(bytes.NewReader(again), 1<<10, &n); err != nil || !proto.Equal(&m, &n) {
			t.Fatalf("read again: %v", err)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func mustFrame(t testing.TB, m proto.Message) []byte {
	t.Helper()
	raw, err := appendFrame(nil, m, maxAnyFrame)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func wantFault(t testing.TB, err error, fault FrameFault) {
	t.Helper()
	var fe *FrameError
	if !errors.As(err, &fe) || fe.Fault != fault {
		t.Errorf("got %v, want a frame error of fault %d", err, fault)
	}
}
