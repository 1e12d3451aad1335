// Package httprules says what of an HTTP request or response may pass a hop of IOP: which headers stop there, which
// targets, methods and header fields are sound enough to be sent on, and where a request to a provider goes.
//
// The edge applies it to what a caller sent, the node applies it again before a provider gets it, so that neither has
// to trust the other. It holds rules only: no I/O, no configuration, no list of paths (that belongs to a dialect).
package httprules

import (
	"errors"
	"net/http"
	"net/textproto"
	"strings"
)

// hopByHop reports whether a header (in canonical form) belongs to one connection, whoever sent it. Trailer and TE are
// among them: trailers don't travel through a tunnel.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings":
		return true
	}
	return false
}

// callerOnly reports whether a header (in canonical form) is meant for the edge, or says who and where the caller is:
// a provider gets none of it. A provider's own credential is put in by the node, never by the caller.
func callerOnly(name string) bool {
	switch name {
	case "Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Auth-Token", "Cookie", "Cookie2",
		"Host", "Origin", "Referer", "Expect",
		"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip":
		return true
	}
	return strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "X-Iop-")
}

// HopByHop removes the headers that belong to one connection, and those that a Connection header names. It serves
// requests and responses, and finds names in any case.
func HopByHop(h http.Header) {
	for name, values := range h {
		if textproto.CanonicalMIMEHeaderKey(name) == "Connection" {
			dropNamed(h, values)
		}
	}
	for name := range h {
		if hopByHop(meant(name)) {
			delete(h, name)
		}
	}
}

// dropNamed removes every header that the values of a Connection header name.
func dropNamed(h http.Header, values []string) {
	for _, v := range values {
		for option := range strings.SplitSeq(v, ",") {
			option = textproto.TrimString(option)
			if option == "" {
				continue
			}
			for name := range h {
				if strings.EqualFold(name, option) {
					delete(h, name)
				}
			}
		}
	}
}

// StripCaller removes what a provider must not get from a caller: credentials, cookies, Host, Origin, Expect and the
// traces of proxies, in any case. It doesn't do what [HopByHop] does.
func StripCaller(h http.Header) {
	for name := range h {
		if callerOnly(meant(name)) {
			delete(h, name)
		}
	}
}

// ForProvider reports whether a header may reach a provider: it is none of those that [HopByHop] and [StripCaller]
// remove by name. What a Connection header names is for [HopByHop] to find.
func ForProvider(name string) bool {
	name = meant(name)
	return !hopByHop(name) && !callerOnly(name)
}

// MayHoldKey reports whether a header's name says that it carries a key or a token, whoever made the name up. Of a request that is
// given a key none goes along, known to [StripCaller] or not: which of two counts would be the provider's choice.
func MayHoldKey(name string) bool {
	name = strings.ToLower(meant(name))
	for _, end := range []string{"api-key", "apikey", "authorization", "-auth", "auth-token", "access-token", "security-token", "session-token",
		"subscription-key", "functions-key", "private-token", "-credential", "-credentials", "-secret"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return name == "authentication" || name == "token" || name == "x-token"
}

// meant returns the canonical form of the name for which a server may take a header's: to programs behind CGI or WSGI
// X_Api_Key and X-Api-Key are one and the same, and the later of two counts, or both joined.
func meant(name string) string {
	if strings.Contains(name, "_") {
		name = strings.ReplaceAll(name, "_", "-")
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// The ways in which a header is refused. The text never repeats what was refused.
var (
	ErrHeaderName  = errors.New("header name is not a token")
	ErrHeaderValue = errors.New("header value holds a control character")
	ErrMethod      = errors.New("method is not one that can be passed on")
)

// CheckHeader refuses header names that aren't tokens and values with a control character (CR, LF and NUL are how
// one request is turned into two).
func CheckHeader(h http.Header) error {
	for name, values := range h {
		if !token(name) {
			return ErrHeaderName
		}
		for _, v := range values {
			if !fieldValue(v) {
				return ErrHeaderValue
			}
		}
	}
	return nil
}

// CheckMethod refuses methods that aren't tokens in capital letters, and those that would turn a connection into
// something else or show a request's headers to whoever asks.
func CheckMethod(method string) error {
	if method == "" || method == http.MethodConnect || method == http.MethodTrace {
		return ErrMethod
	}
	for i := range len(method) {
		if c := method[i]; c < 'A' || c > 'Z' {
			return ErrMethod
		}
	}
	return nil
}

// token reports whether s is a token of RFC 9110.
func token(s string) bool {
	for i := range len(s) {
		if !tokenByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func tokenByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func fieldValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
