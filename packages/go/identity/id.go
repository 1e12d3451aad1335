package identity

import (
	"errors"
	"fmt"
	"strings"
)

const (
	scheme         = "spiffe://"
	maxID          = 2048
	maxTrustDomain = 255
)

// ID is a SPIFFE ID, by the rules of its specification: spiffe://TRUST-DOMAIN/PATH. Two are the same if their texts
// are: there is only one way to write each.
type ID string

// ParseID checks a text that should be the ID of a program. It is never corrected: one that is nearly right is wrong.
func ParseID(s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return "", fmt.Errorf("isn't a SPIFFE ID; write %sTRUST-DOMAIN/PATH", scheme)
	}
	domain, path, _ := strings.Cut(rest, "/")
	switch {
	case len(s) > maxID:
		return "", fmt.Errorf("is longer than %d bytes", maxID)
	case !ValidTrustDomain(domain):
		return "", errors.New("has no valid trust domain: lower-case letters, digits, . _ -, and neither user nor port")
	case path == "":
		return "", errors.New("has no path: it names a trust domain and no program in it")
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsFunc(segment, notInPath) {
			return "", errors.New("has a path that isn't plain: segments of letters, digits, . _ -, none of them . or .. or empty")
		}
	}
	return ID(s), nil
}

func notInPath(c rune) bool {
	return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_')
}

// ValidTrustDomain reports whether s can be a trust domain.
func ValidTrustDomain(s string) bool {
	return s != "" && len(s) <= maxTrustDomain && !strings.ContainsFunc(s, func(c rune) bool {
		return notInPath(c) || c >= 'A' && c <= 'Z'
	})
}

// TrustDomain returns the trust domain of a parsed ID.
func (id ID) TrustDomain() string {
	domain, _, _ := strings.Cut(strings.TrimPrefix(string(id), scheme), "/")
	return domain
}

// NodeID is the ID of a node where its record names no other.
func NodeID(trustDomain, node string) ID { return ID(scheme + trustDomain + "/iop/node/" + node) }

// EdgeID is the ID of an Edge where nobody chose another. Edges that serve the same nodes share it.
func EdgeID(trustDomain string) ID { return ID(scheme + trustDomain + "/iop/edge") }
