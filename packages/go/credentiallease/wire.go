package credentiallease

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// The wire is protobuf's, in one form only: fields in ascending order, each at most once, varints as short as they can
// be, nothing that is empty or zero, no field that this version doesn't know. Protobuf's own decoders accept more, and
// two programs that read the same bytes differently are what an attacker looks for. It is written by hand so that what
// was signed is decoded by this package and nothing else.

const (
	wireVarint = 0
	wireBytes  = 2
)

func appendTag(b []byte, number int, wire byte) []byte {
	return binary.AppendUvarint(b, uint64(number)<<3|uint64(wire))
}

// appendUint leaves out 0, as proto3 does.
func appendUint(b []byte, number int, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(appendTag(b, number, wireVarint), v)
}

// appendBytes leaves out what is empty, as proto3 does.
func appendBytes[T string | []byte](b []byte, number int, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = binary.AppendUvarint(appendTag(b, number, wireBytes), uint64(len(v)))
	return append(b, v...)
}

// wireReader reads fields in the order in which they are asked for. What isn't in canonical form makes it bad for good.
type wireReader struct {
	rest []byte
	bad  bool
}

// uint returns the number in a field, 0 if it isn't there.
func (r *wireReader) uint(number int) uint64 {
	if !r.tag(number, wireVarint) {
		return 0
	}
	v := r.varint()
	r.bad = r.bad || v == 0
	return v
}

// bytes returns what is in a field, nil if it isn't there. It is a part of the input and has at most max bytes.
func (r *wireReader) bytes(number, max int) []byte {
	if !r.tag(number, wireBytes) {
		return nil
	}
	n := r.varint()
	if r.bad || n == 0 || n > uint64(max) || n > uint64(len(r.rest)) {
		r.bad = true
		return nil
	}
	v := r.rest[:n:n]
	r.rest = r.rest[n:]
	return v
}

// text is bytes that must be UTF-8.
func (r *wireReader) text(number, max int) string {
	v := r.bytes(number, max)
	r.bad = r.bad || !utf8.Valid(v)
	return string(v)
}

// end reports whether everything was read, and was canonical: what is left over is a field that is unknown, repeated or
// out of order.
func (r *wireReader) end() bool { return !r.bad && len(r.rest) == 0 }

// tag consumes the tag of the field if that is what comes next.
func (r *wireReader) tag(number int, wire byte) bool {
	var want [binary.MaxVarintLen64]byte
	tag := appendTag(want[:0], number, wire)
	if r.bad || len(r.rest) < len(tag) || string(r.rest[:len(tag)]) != string(tag) {
		return false
	}
	r.rest = r.rest[len(tag):]
	return true
}

func (r *wireReader) varint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || n != max(1, (bits.Len64(v)+6)/7) {
		r.bad = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}
