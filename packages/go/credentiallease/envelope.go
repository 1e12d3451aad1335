package credentiallease

import "encoding/binary"

// pae is pre-authentication encoding: the number of parts, then each with its length, all in 64 bits, little-endian. No
// two lists of parts have the same encoding.
func pae(parts ...[]byte) []byte {
	size := 8
	for _, p := range parts {
		size += 8 + len(p)
	}
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, size), uint64(len(parts)))
	for _, p := range parts {
		out = append(binary.LittleEndian.AppendUint64(out, uint64(len(p))), p...)
	}
	return out
}
