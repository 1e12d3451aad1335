package identity

import "time"

// Validity is how long a certificate is good.
type Validity struct{ Begins, Ends time.Time }

const (
	// soon is how long before its end a certificate is worth a word: time enough for whoever makes them.
	soon = 30 * 24 * time.Hour
	// shortLived is the longest life of certificates that something renews by itself, as SPIRE does.
	shortLived = 7 * 24 * time.Hour
)

// EndsSoon reports whether somebody should see to it that there is a new certificate: 30 days before the end; of one that
// lives for a week at most, when the last third of its life has begun and nothing has renewed it.
func (v Validity) EndsSoon(now time.Time) bool {
	left, whole := v.Ends.Sub(now), v.Ends.Sub(v.Begins)
	if whole <= shortLived {
		return left < whole/3
	}
	return left < soon
}

// Own is the validity of the program's own chain.
func (m *Material) Own() Validity { return Validity{m.cert.Leaf.NotBefore, m.expires} }

// Trust is the validity of that CA which ends last: while one is replaced, that is the new one.
func (m *Material) Trust() (v Validity) {
	for _, ca := range m.cas {
		if ca.NotAfter.After(v.Ends) {
			v = Validity{ca.NotBefore, ca.NotAfter}
		}
	}
	return v
}
