package config

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

const (
	redacted    = "[redacted]"
	joinPrefix  = "iop1."
	keyPrefix   = "sk-iop-"
	secretBytes = 32
	minToken    = 16
	maxToken    = 4096
)

// Secret is a string that can't be printed: every format, JSON, YAML and text show [redacted]. It holds a pointer, so
// that fmt shows no more than an address even where it can't call methods (inside an unexported field).
type Secret struct{ value *string }

// NewSecret wraps a secret.
func NewSecret(s string) Secret { return Secret{value: &s} }

// Reveal returns the secret itself; only what sends it or hashes it may call this.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// String implements fmt.Stringer, and so what loggers show.
func (Secret) String() string { return redacted }

// Format implements fmt.Formatter: every verb and flag shows the same.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON implements json.Marshaler.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalYAML implements yaml.Marshaler.
func (Secret) MarshalYAML() (any, error) { return redacted, nil }

// HashSecret returns the hash that records keep of a bare token or an API key.
func HashSecret(secret string) [32]byte { return sha256.Sum256([]byte(secret)) }

// joinString is what follows the prefix of a join string, as JSON in base64url. What later versions add must be
// understood, not skipped: it is there to be enforced.
type joinString struct {
	Token string `json:"token"`
	// CA is the SHA-256 of the CA certificate that the node must trust, in hex; "" leaves that to its files.
	CA string `json:"ca,omitempty"`
}

// NewToken makes a node's token. join is the string to give to the node, shown once; sha256hex goes into the Edge's
// token_hashes.
func NewToken() (joined Secret, sha256hex string) { return newToken("") }

// NewPinnedToken makes a node's token whose join string also says which CA certificate the node must trust, by its
// SHA-256.
func NewPinnedToken(ca [sha256.Size]byte) (joined Secret, sha256hex string) {
	return newToken(hex.EncodeToString(ca[:]))
}

func newToken(ca string) (joined Secret, sha256hex string) {
	token := random()
	// A struct of strings always encodes.
	content, _ := json.Marshal(joinString{Token: token, CA: ca})
	sum := HashSecret(token)
	return NewSecret(joinPrefix + base64.RawURLEncoding.EncodeToString(content)), hex.EncodeToString(sum[:])
}

// NewKey makes an API key. key is shown once; sha256hex goes into key_hashes.
func NewKey() (key Secret, sha256hex string) {
	s := keyPrefix + random()
	sum := HashSecret(s)
	return NewSecret(s), hex.EncodeToString(sum[:])
}

// random returns 256 bits of crypto/rand, which never fails: it ends the program instead.
func random() string {
	var b [secretBytes]byte
	_, _ = rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// ParseToken returns the bare token that a node shows, from a bare token or a join string. Its errors don't quote it.
func ParseToken(s string) (Secret, error) {
	token, _, err := parseToken(s)
	return token, err
}

// parseToken is ParseToken, and returns the CA that a join string pins, too.
func parseToken(s string) (token Secret, pin string, err error) {
	if encoded, ok := strings.CutPrefix(s, joinPrefix); ok && len(s) <= maxToken && !strings.ContainsAny(s, "\r\n") {
		return parseJoin(encoded)
	}
	token, err = bareToken(s)
	return token, "", err
}

func bareToken(s string) (Secret, error) {
	switch {
	case s == "":
		return Secret{}, errors.New("is empty; make a token with: iop-edge token new NODE")
	case len(s) > maxToken:
		return Secret{}, fmt.Errorf("is longer than %d bytes, so it isn't a token", maxToken)
	case strings.ContainsAny(s, "\r\n"):
		return Secret{}, errors.New("has more than one line; it must hold the token and nothing else")
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return Secret{}, errors.New("holds a blank or a character that no token has")
		}
	}
	if len(s) < minToken {
		return Secret{}, fmt.Errorf("is shorter than %d characters; make a token with: iop-edge token new NODE", minToken)
	}
	return NewSecret(s), nil
}

func parseJoin(encoded string) (token Secret, pin string, err error) {
	damaged := errors.New("is a join string (" + joinPrefix + "…) that was cut or changed; copy it again as a whole")
	content, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return Secret{}, "", damaged
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(content, &fields) != nil {
		return Secret{}, "", damaged
	}
	var bare string
	if json.Unmarshal(fields["token"], &bare) != nil || strings.HasPrefix(bare, joinPrefix) {
		return Secret{}, "", damaged
	}
	known := 1
	if raw, there := fields["ca"]; there {
		if json.Unmarshal(raw, &pin) != nil || !hexHash.MatchString(pin) {
			return Secret{}, "", damaged
		}
		known++
	}
	if len(fields) > known {
		return Secret{}, "", errors.New("is a join string of a newer version; upgrade this program")
	}
	if token, err = bareToken(bare); err != nil {
		return Secret{}, "", err
	}
	return token, strings.ToLower(pin), nil
}
