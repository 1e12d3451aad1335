package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"iop/packages/go/httprules"
)

// base is where a provider is: the only source of a host, and what stands before the path of every request.
type base struct {
	tls  bool
	addr string // host:port to dial
	name string // host without port, for TLS
	host string // value of the Host header
	path string // without a trailing slash
	// versioned says that path ends in a version, as in "…/v1": then a request's own "/v1" is not joined a second
	// time, and a provider whose version isn't v1 gets its own.
	versioned bool
}

func parseBase(raw string) (base, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return base{}, errors.New("base_url: not a URL; use the form http://HOST:PORT")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return base{}, errors.New("base_url: the scheme must be http or https")
	case u.Hostname() == "" || u.Opaque != "":
		return base{}, errors.New("base_url: no host; use the form http://HOST:PORT")
	case u.User != nil:
		return base{}, errors.New("base_url: holds a user name or a password; remove it")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(raw, "#"):
		return base{}, errors.New("base_url: holds a query or a fragment; remove it")
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	if path != "" {
		if err := httprules.CheckTarget(path, ""); err != nil {
			return base{}, fmt.Errorf("base_url: %w", err)
		}
	}
	b := base{tls: u.Scheme == "https", name: u.Hostname(), host: u.Host, path: path}
	b.versioned = isVersion(path[strings.LastIndexByte(path, '/')+1:])
	port := u.Port()
	if port == "" {
		port = "80"
		if b.tls {
			port = "443"
		}
	}
	b.addr = net.JoinHostPort(b.name, port)
	return b, nil
}

// isVersion reports whether a path segment names an API version: v1, v4, v1beta.
func isVersion(segment string) bool {
	return len(segment) >= 2 && segment[0] == 'v' && '1' <= segment[1] && segment[1] <= '9'
}

// join returns what the path of a request becomes, in two parts: what the base puts before it, and the bytes of the
// request's own path that are kept. (HT-16)
func (b *base) join(path string) (prefix, rest string) {
	if rest, ok := strings.CutPrefix(path, "/v1"); ok && b.versioned && strings.HasPrefix(rest, "/") {
		return b.path, rest
	}
	return b.path, path
}

// root returns the base's path without its version: below it a provider answers what isn't part of its API.
func (b *base) root() string {
	if b.versioned {
		return b.path[:strings.LastIndexByte(b.path, '/')]
	}
	return b.path
}

// allowList says which raw paths may be sent to a provider.
type allowList struct {
	exact    map[string]bool
	prefixes []string // each ends in a slash
}

// newAllowList takes whole paths, and paths that end in "/*" for everything below.
func newAllowList(lists ...[]string) (allowList, error) {
	a := allowList{exact: map[string]bool{}}
	for _, list := range lists {
		for _, entry := range list {
			prefix, below := strings.CutSuffix(entry, "*")
			if err := httprules.CheckTarget(prefix, ""); err != nil {
				return allowList{}, fmt.Errorf("allow_paths: %q: %w", entry, err)
			}
			switch {
			case strings.Contains(prefix, "*") || below && !strings.HasSuffix(prefix, "/"):
				return allowList{}, fmt.Errorf("allow_paths: %q: a star stands only at the end, after a slash", entry)
			case below:
				a.prefixes = append(a.prefixes, prefix)
			default:
				a.exact[entry] = true
			}
		}
	}
	return a, nil
}

// allows reports whether a path that [httprules.CheckTarget] passed is on the list. It compares bytes: what a provider
// would take for the same path under another spelling is not on it. (HT-15)
func (a *allowList) allows(path string) bool {
	if a.exact[path] {
		return true
	}
	for _, prefix := range a.prefixes {
		if len(path) > len(prefix) && strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}
