package transport

import (
	"slices"
	"testing"

	"iop/packages/go/patience"
)

// No read goes over a step of the window, so that the multiplexer gives the whole of a window back once it was read,
// and not half of it.
func TestReadsEndAtTheStepsOfTheWindow(t *testing.T) {
	p := startTCP(t, func(s *Stream) {
		if _, err := s.ReadOpen(patience.Limit); err != nil {
			t.Error(err)
		}
		body := make([]byte, MaxBody)
		for seq := range uint64(3 * windowStep / MaxBody) {
			sendBody(s, seq+1, body)
		}
		_, _ = s.ReadInput() // the edge's close
	})
	s := p.open(t, t.Context())
	defer s.Close()
	var ends []int
	buffer := make([]byte, 300_001)
	for read := 0; read < 2*windowStep+1; {
		n, err := (*streamSource)(s).Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		read += n
		ends = append(ends, read)
	}
	if !slices.Contains(ends, windowStep) || !slices.Contains(ends, 2*windowStep) {
		t.Errorf("reads ended at %v, and at %d and %d for sure", ends, windowStep, 2*windowStep)
	}
}
