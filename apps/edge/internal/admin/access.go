package admin

import (
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"iop/packages/go/execution"
)

// refusal is why a request isn't served. Its text holds nothing that came with the request.
type refusal struct {
	status int
	code   execution.Code
	text   string
}

// check decides whether a request may be served; found is false when the table has no such path.
func (h *handler) check(r *http.Request, e Endpoint, found bool) *refusal {
	switch {
	case h.loopback && !loopbackHost(r.Host):
		// A web page whose name was pointed at this machine would read everything here (DNS rebinding).
		return &refusal{http.StatusForbidden, execution.CodeBadRequest, "this listener answers to loopback names only"}
	case foreignOrigin(r):
		return &refusal{http.StatusForbidden, execution.CodeBadRequest, "web pages of another origin are not served"}
	case !found:
		return &refusal{http.StatusNotFound, execution.CodeBadRequest, "no such path on the admin listener"}
	case r.Method != e.Method && r.Method != http.MethodHead:
		return &refusal{http.StatusMethodNotAllowed, execution.CodeBadRequest, "this path doesn't take the method"}
	case e.Access != AccessOpen && !h.loopback && !h.hasKey(r.Header):
		return &refusal{http.StatusUnauthorized, execution.CodeUnauthorized,
			"no valid admin key: send it as Authorization: Bearer KEY"}
	}
	return nil
}

func (h *handler) hasKey(header http.Header) bool {
	values := header["Authorization"]
	if len(values) != 1 || len(values[0]) > 1024 {
		return false
	}
	scheme, key, ok := strings.Cut(values[0], " ")
	return ok && key != "" && strings.EqualFold(scheme, "Bearer") && h.cfg.State().AdminKey(sha256.Sum256([]byte(key)))
}

// loopbackHost reports whether a Host header names this machine by a name that can't be pointed elsewhere.
func loopbackHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.IsLoopback()
}

// foreignOrigin reports whether a web page of another origin is behind a request, by either header that says so.
func foreignOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return !strings.EqualFold(origin, scheme+r.Host)
}

// refuse answers a request that isn't served. Denials are recorded.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, f *refusal) {
	h.cfg.Log.Info().Int("status", f.status).Stringer("code", f.code).Str("error", f.text).Str("remote", r.RemoteAddr).
		Msg("admin request refused")
	if f.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if f.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", "GET, HEAD")
	}
	h.write(w, f.status, map[string]any{"error": map[string]string{"message": f.text, "code": f.code.String()}})
}
