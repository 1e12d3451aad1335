package httprules

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// Base is where a provider is, as a base_url says it: the only source of a host, and what stands before the path of
// every request. The zero value is none.
type Base struct {
	TLS  bool
	Addr string // host:port to dial
	Name string // host without port, for TLS
	Host string // value of the Host header
	path string // without a trailing slash
	// versioned says that path ends in a version, as in "…/v1": then a request's own "/v1" is not joined a second
	// time, and a provider whose version isn't v1 gets its own.
	versioned bool
}

// ParseBase reads a base URL: http or https, a host, and perhaps a path; nothing else. An error doesn't repeat it.
func ParseBase(raw string) (Base, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Base{}, errors.New("not a URL; use the form http://HOST:PORT")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return Base{}, errors.New("the scheme must be http or https")
	case u.Hostname() == "" || u.Opaque != "":
		return Base{}, errors.New("no host; use the form http://HOST:PORT")
	case u.User != nil:
		return Base{}, errors.New("holds a user name or a password; remove it")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(raw, "#"):
		return Base{}, errors.New("holds a query or a fragment; remove it")
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	if path != "" {
		if err := CheckTarget(path, ""); err != nil {
			return Base{}, err
		}
	}
	b := Base{TLS: u.Scheme == "https", Name: u.Hostname(), Host: u.Host, path: path}
	b.versioned = isVersion(path[strings.LastIndexByte(path, '/')+1:])
	port := u.Port()
	if port == "" {
		port = "80"
		if b.TLS {
			port = "443"
		}
	}
	b.Addr = net.JoinHostPort(b.Name, port)
	if _, _, err := net.SplitHostPort(b.Addr); err != nil { // url.Parse takes brackets anywhere
		return Base{}, errors.New("the host isn't one; use the form http://HOST:PORT")
	}
	return b, nil
}

// isVersion reports whether a path segment names an API version: v1, v4, v1beta.
func isVersion(segment string) bool {
	return len(segment) >= 2 && segment[0] == 'v' && '1' <= segment[1] && segment[1] <= '9'
}

// Join returns what the path of a request becomes, in two parts: what the base puts before it, and the bytes of the
// request's own path that are kept. (HT-16)
func (b *Base) Join(path string) (prefix, rest string) {
	if rest, ok := strings.CutPrefix(path, "/v1"); ok && b.versioned && strings.HasPrefix(rest, "/") {
		return b.path, rest
	}
	return b.path, path
}

// Root returns the base's path without its version: below it a provider answers what isn't part of its API.
func (b *Base) Root() string {
	if b.versioned {
		return b.path[:strings.LastIndexByte(b.path, '/')]
	}
	return b.path
}

// Origin returns scheme://host:port in the one form in which origins are compared: lower case, the port always there.
func (b *Base) Origin() string {
	scheme := "http://"
	if b.TLS {
		scheme = "https://"
	}
	return scheme + strings.ToLower(b.Addr)
}

// Destination says where a request for path goes at a provider with this base URL: the origin, in [Base.Origin]'s form,
// and the whole path as the provider will see it. The edge signs it and the node compares it with what it is about to
// do, so that both have it from here. Whether the origin has TLS is the caller's question. An error names what is
// wrong and doesn't repeat it.
func Destination(baseURL, path string) (origin, full string, err error) {
	b, err := ParseBase(baseURL)
	if err != nil {
		return "", "", fmt.Errorf("base_url: %w", err)
	}
	if err := CheckTarget(path, ""); err != nil {
		return "", "", err
	}
	prefix, rest := b.Join(path)
	return b.Origin(), prefix + rest, nil
}
