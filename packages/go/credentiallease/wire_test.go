package credentiallease

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// schema is LeaseClaims and CredentialLease as protobuf knows them.
func schema(t testing.TB) protoreflect.FileDescriptor {
	t.Helper()
	text, number, raw := descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_UINT64, descriptorpb.FieldDescriptorProto_TYPE_BYTES
	signed, short := descriptorpb.FieldDescriptorProto_TYPE_INT64, descriptorpb.FieldDescriptorProto_TYPE_UINT32
	field := func(n int, kind descriptorpb.FieldDescriptorProto_Type) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: proto.String("f" + strconv.Itoa(n)), Number: proto.Int32(int32(n)), Type: kind.Enum(),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
	}
	lease := &descriptorpb.DescriptorProto{Name: proto.String("CredentialLease"), Field: []*descriptorpb.FieldDescriptorProto{
		field(1, short), field(2, text), field(3, raw), field(4, raw), field(5, raw), field(6, raw)}}
	claims := &descriptorpb.DescriptorProto{Name: proto.String("LeaseClaims")}
	for _, f := range new(Claims).table() {
		kind := map[bool]descriptorpb.FieldDescriptorProto_Type{true: text}[true]
		switch f.at.(type) {
		case *uint64:
			kind = number
		case *int64:
			kind = signed
		case *uint32:
			kind = short
		case *[leaseIDSize]byte:
			kind = raw
		}
		claims.Field = append(claims.Field, field(f.number, kind))
	}
	d, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{Name: proto.String("lease.proto"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{lease, claims}}, nil)
	check(t, err)
	return d
}

// throughProtobuf decodes with protobuf and encodes again.
func throughProtobuf(t testing.TB, message protoreflect.MessageDescriptor, b []byte) []byte {
	t.Helper()
	m := dynamicpb.NewMessage(message)
	check(t, proto.Unmarshal(b, m))
	if len(m.GetUnknown()) != 0 {
		t.Fatal("protobuf doesn't know a field")
	}
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	check(t, err)
	return out
}

// A3, A4: the wire is protobuf's, so that a program that has it can read a lease.
func TestWireIsProtobuf(t *testing.T) {
	w, messages := newWorld(t), schema(t).Messages()
	wire := w.issue(t)
	if got := throughProtobuf(t, messages.Get(0), wire); !bytes.Equal(got, wire) {
		t.Error("protobuf writes the lease otherwise")
	}
	e, err := decodeEnvelope(wire)
	check(t, err)
	if got := throughProtobuf(t, messages.Get(1), e.claims); !bytes.Equal(got, e.claims) {
		t.Error("protobuf writes the claims otherwise")
	}
	c, err := decodeClaims(e.claims)
	check(t, err)
	if !bytes.Equal(c.encode(), e.claims) || !bytes.Equal(e.encode(), wire) {
		t.Error("what was decoded is encoded otherwise")
	}
}

// Numbers of the claims ascend, and those that were removed stay reserved.
func TestClaimNumbers(t *testing.T) {
	last := 0
	for _, f := range new(Claims).table() {
		if f.number <= last || f.number == 16 || f.number == 26 {
			t.Errorf("field %v has number %d after %d", f.field, f.number, last)
		}
		last = f.number
	}
}

// E17: what protobuf accepts in more than one form is accepted in one.
func TestOneFormOnly(t *testing.T) {
	c := newWorld(t).draft().claims
	good := c.encode()
	replace := func(old, with string) []byte { return []byte(strings.Replace(string(good), old, with, 1)) }
	attempt := string(appendUint(nil, 27, 1))
	for name, b := range map[string][]byte{
		"varint longer than it must be": replace(attempt, string(protowire.AppendTag(nil, 27, protowire.VarintType))+"\x81\x00"),
		"tag longer than it must be":    replace(attempt, "\xd8\x81\x00\x01"),
		"length longer than it must be": replace("\x0a\x06edge-a", "\x0a\x86\x00edge-a"),
		"empty field that is there":     append([]byte{0x0a, 0}, good[8:]...),
		"empty scheme that is there":    replace("\xba\x01\x06Bearer", "\xba\x01\x00"),
		"zero that is there":            replace(attempt, "\xd8\x01\x00"),
		"fields out of order":           append(bytes.Clone(good[8:]), good[:8]...),
		"field twice":                   append(bytes.Clone(good[:8]), good...),
		"unknown field":                 append(bytes.Clone(good), 0xf8, 0x01, 1),
		"group":                         append(bytes.Clone(good), 0xf3, 0x01, 0xf4, 0x01),
		"wrong wire type":               replace(attempt, "\xda\x01\x011"),
		"not UTF-8":                     replace("edge-a", "edge-\xff"),
		"attempt over 32 bits":          replace(attempt, string(appendUint(nil, 27, 1<<32))),
		"varint over 64 bits":           replace(attempt, "\xd8\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
		"length over everything":        replace("\x0a\x06edge-a", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7fedge-a"),
		"time over 63 bits":             replace(string(appendUint(nil, 19, uint64(c.IssuedAt))), string(appendUint(nil, 19, 1<<63))),
		"lease id of 15 bytes":          replace("\x1a\x10"+string(c.LeaseID[:1]), "\x1a\x0f"),
	} {
		if bytes.Equal(b, good) {
			t.Fatalf("%s: nothing was replaced", name)
		}
		if _, err := decodeClaims(b); err == nil || err.(Refusal).Reason != Malformed {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := decodeClaims(good); err != nil || *got != c {
		t.Errorf("the good one: %v", err)
	}
}

// Every claim without which a lease means nothing is required, and none is longer than it may be.
func TestClaimsAreWhole(t *testing.T) {
	full := newWorld(t).draft().claims
	for i, f := range full.table() {
		c := full
		switch v := c.table()[i].at.(type) {
		case *string:
			*v = ""
		case *uint64:
			*v = 0
		case *uint32:
			*v = 0
		case *int64:
			*v = 0
		}
		_, err := decodeClaims(c.encode())
		if f.checked || f.number == 3 {
			check(t, err)
			continue
		}
		wantRefusal(t, err, Malformed, f.field)
	}
	c := full
	c.Target = strings.Repeat("t", maxText)
	_, err := decodeClaims(c.encode())
	check(t, err)
	c.Target += "t"
	_, err = decodeClaims(c.encode())
	wantRefusal(t, err, Malformed, FieldTarget)
	_, err = decodeClaims(make([]byte, maxClaims+1))
	wantRefusal(t, err, Malformed, FieldClaims)
}

// E2: a lease that ends anywhere too early, or too late, isn't one.
func TestTruncatedAtEveryOffset(t *testing.T) {
	w := newWorld(t)
	wire := w.issue(t)
	for n := range wire {
		if _, err := w.guard.Verify(wire[:n], testBinding(), w.now); err == nil || err.(Refusal).Reason != Malformed {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	_, err := w.guard.Verify(append(bytes.Clone(wire), 0), testBinding(), w.now)
	wantRefusal(t, err, Malformed, FieldLease)
	_, err = w.guard.Verify(append(bytes.Clone(wire), wire...), testBinding(), w.now)
	wantRefusal(t, err, Malformed, FieldLease)
}

// PAE as bytes: two lists that look alike when glued together stay apart.
func TestPAE(t *testing.T) {
	want := "\x02\x00\x00\x00\x00\x00\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00a" + "\x00\x00\x00\x00\x00\x00\x00\x00"
	if got := string(pae([]byte("a"), nil)); got != want {
		t.Errorf("%q", got)
	}
	if bytes.Equal(pae([]byte("ab"), []byte("c")), pae([]byte("a"), []byte("bc"))) {
		t.Error("two lists have one encoding")
	}
}

// What is signed, as bytes: a change of it is a new version.
func TestSignedBytes(t *testing.T) {
	e := &envelope{version: 1, kid: "k", claims: []byte("c"), enc: []byte("e"), sealed: []byte("s")}
	want := binary.LittleEndian.AppendUint64(nil, 6)
	for _, part := range []string{"iop.credlease.v1.sig", "\x00\x00\x00\x01", "k", "c", "e", "s"} {
		want = append(binary.LittleEndian.AppendUint64(want, uint64(len(part))), part...)
	}
	if !bytes.Equal(e.signed(), want) {
		t.Errorf("%q", e.signed())
	}
}
