package httpapi

import (
	"crypto/rand"
	"net/http"
	"slices"
	"strings"

	"iop/packages/go/httprules"
	"iop/packages/go/tracing"
)

// staysHere reports whether a request header (in canonical form) never leaves the edge. To what stops at every hop, and
// to what a caller tells the edge alone, it adds the names under which keys are shown elsewhere: the provider would be a
// third party to them. Where a request stands in a trace is told to the node beside its header.
func staysHere(name string) bool {
	switch name {
	case "Content-Length", "X-Auth-Key", "X-Access-Token", "X-Amz-Security-Token", "Ocp-Apim-Subscription-Key":
		return true
	}
	return strings.HasPrefix(name, "Proxy-") || tracing.IsHeader(name) || !httprules.ForProvider(name)
}

// endsHere is the same for a provider's response headers, beside hop-by-hop ones: those that only the edge can answer
// for. Access-Control is a promise of the origin that a browser talks to, and that is the edge. net/http would send a
// key that begins with Trailer: as a trailer.
func endsHere(name string) bool {
	return name == "Content-Length" || name == "X-Request-Id" ||
		hasPrefix(name, "X-Iop-", "Access-Control-", "Proxy-", http.TrailerPrefix)
}

// forwardHeader returns the part of a caller's headers that goes to the provider, values byte for byte. The values are
// shared with in.
func forwardHeader(in http.Header) http.Header {
	out := make(http.Header, len(in))
	listed := connectionNames(in)
	for key, values := range in {
		name := http.CanonicalHeaderKey(key)
		if strings.IndexByte(name, '_') >= 0 {
			// Gateways in front of some providers read x_api_key as x-api-key.
			name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		}
		if !staysHere(name) && !slices.Contains(listed, name) {
			out[key] = values
		}
	}
	return out
}

// connectionNames returns the fields that a message declares as belonging to its connection.
func connectionNames(h http.Header) []string {
	var listed []string
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			listed = append(listed, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	return listed
}

func hasPrefix(name string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// headerBytes is how much room a header takes on the wire to the node.
func headerBytes(h http.Header) int64 {
	var n int64
	for name, values := range h {
		for _, value := range values {
			n += int64(len(name) + len(value) + 4)
		}
	}
	return n
}

// requestID returns the caller's id for a request if it can stand in headers and logs, else a new one.
func requestID(given string) string {
	if given == "" || len(given) > 128 || strings.ContainsFunc(given, func(r rune) bool { return !isIDRune(r) }) {
		return "req-" + rand.Text()
	}
	return given
}

func isIDRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-:=+/@", r)
}

// validSession reports whether a session id can travel: the rule of the wire's ids.
func validSession(id string) bool {
	return len(id) <= 64 && !strings.ContainsFunc(id, func(r rune) bool { return !isIDRune(r) || strings.ContainsRune(":=+/@", r) })
}

// validFieldName reports whether name is a token of RFC 9110.
func validFieldName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// validFieldValue reports whether a value is free of what would end a field.
func validFieldValue(value string) bool { return !strings.ContainsAny(value, "\r\n\x00") }
