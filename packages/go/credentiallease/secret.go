package credentiallease

import (
	"errors"
	"fmt"
	"sync"
)

const redacted = "[redacted]"

// The length of a secret, in bytes.
const (
	MinSecret = 8
	MaxSecret = 4096
)

// hidden is what every type with a secret in it embeds: each way to print or encode such a value shows [redacted] or
// fails. It can't be compared, so that nobody compares secrets in a way that tells how far they agree.
type hidden struct{ _ [0]func() }

// String implements fmt.Stringer, and so what loggers show.
func (hidden) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (hidden) GoString() string { return redacted }

// Format implements fmt.Formatter: every verb and flag shows the same.
func (hidden) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText implements encoding.TextMarshaler, and so XML, text loggers and keys of maps.
func (hidden) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON implements json.Marshaler, and so loggers that write JSON.
func (hidden) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalYAML implements yaml.Marshaler.
func (hidden) MarshalYAML() (any, error) { return redacted, nil }

// MarshalBinary refuses: what is binary is meant to be read back.
func (hidden) MarshalBinary() ([]byte, error) { return nil, errHidden }

// GobEncode refuses likewise.
func (hidden) GobEncode() ([]byte, error) { return nil, errHidden }

var errHidden = errors.New("credentiallease: a secret can't be encoded")

// Secret is a provider key in the edge's memory. Copies of a Secret share one buffer, so that Zero reaches all of them.
// Safe for concurrent use; the zero value holds nothing.
type Secret struct {
	hidden
	box *box[[]byte]
}

// box holds a value where no printer finds it: fmt stops at pointers in fields, and what follows pointers (a debugger's
// dump, a differ of tests) stops at the function.
type box[T any] struct {
	mu   sync.Mutex
	take func() T // guarded by mu; nil = dropped
}

func boxed[T any](v T) *box[T] { return &box[T]{take: func() T { return v }} }

// get returns the value, and false when there is none any more.
func (b *box[T]) get() (v T, ok bool) {
	if b == nil {
		return v, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.take == nil {
		return v, false
	}
	return b.take(), true
}

// drop empties the box; wipe clears what was in it while nobody else can get it.
func (b *box[T]) drop(wipe func(T)) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.take != nil {
		wipe(b.take())
		b.take = nil
	}
}

// NewSecret takes over value: the caller keeps no copy and doesn't touch it again. It must have MinSecret to MaxSecret
// bytes, all of them visible ASCII, since it becomes part of a header; the error doesn't quote it. A refused value is
// cleared.
func NewSecret(value []byte) (Secret, error) {
	switch {
	case len(value) < MinSecret || len(value) > MaxSecret:
		clear(value)
		return Secret{}, fmt.Errorf("credentiallease: a secret has %d to %d bytes", MinSecret, MaxSecret)
	case !visible(value):
		clear(value)
		return Secret{}, errors.New("credentiallease: a secret has no blanks, line ends or characters outside ASCII")
	}
	return Secret{box: boxed(value)}, nil
}

// Use calls f with the secret itself, under the secret's lock, and reports whether there was one. f must be quick, keep
// no reference, and change nothing: it is for copying, hashing and searching.
func (s Secret) Use(f func(value []byte)) bool {
	if s.box == nil {
		return false
	}
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	if s.box.take == nil {
		return false
	}
	f(s.box.take())
	return true
}

// IsZero reports whether there is no secret (any more).
func (s Secret) IsZero() bool { return !s.Use(func([]byte) {}) }

// Zero clears the secret in all its copies. A lease that is being issued was copied before or isn't issued.
func (s Secret) Zero() { s.box.drop(func(value []byte) { clear(value) }) }

// visible reports whether all bytes are 0x21 to 0x7e. It looks at every byte, whatever it finds.
func visible(b []byte) bool {
	bad := 0
	for _, c := range b {
		// Borrows out of 8 bits show c < 0x21 and c > 0x7e without a branch.
		bad |= (int(c) - 0x21) >> 8
		bad |= (0x7e - int(c)) >> 8
	}
	return bad == 0
}
