package e2e

import (
	"bytes"
)

// countFold counts a text in raw bytes, in any case.
func countFold(raw []byte, text string) int {
	return bytes.Count(bytes.ToLower(raw), bytes.ToLower([]byte(text)))
}
