package admin

import (
	"cmp"
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"iop/packages/go/execution"
)

// refusal is why a request isn't served.
type refusal struct {
	status int
	code   execution.Code
	text   string // holds nothing that came with the request
	detail string // for whoever asked, instead of text; it may name what they sent
	allow  string // the Allow header of a 405
}

// check decides whether a request may be served; found is false when the table has no such path.
func (h *handler) check(r *http.Request, e Endpoint, found bool) *refusal {
	switch {
	case h.loopback && !loopbackHost(r.Host):
		// A web page whose name was pointed at this machine would read everything here (DNS rebinding).
		return &refusal{status: http.StatusForbidden, code: execution.CodeBadRequest, text: "this listener answers to loopback names only"}
	case foreignOrigin(r) && !(e.Access == AccessPage && followsLink(r)):
		return &refusal{status: http.StatusForbidden, code: execution.CodeBadRequest, text: "web pages of another origin are not served"}
	case !found:
		return &refusal{status: http.StatusNotFound, code: execution.CodeBadRequest, text: "no such path on the admin listener"}
	case r.Method != e.Method && (r.Method != http.MethodHead || e.Method != http.MethodGet):
		return &refusal{status: http.StatusMethodNotAllowed, code: execution.CodeBadRequest, text: "this path doesn't take the method", allow: e.allow()}
	case e.Access != AccessOpen && e.Access != AccessPage && !h.loopback && !h.hasKey(r.Header):
		return &refusal{status: http.StatusUnauthorized, code: execution.CodeUnauthorized,
			text: "no valid admin key: send it as Authorization: Bearer KEY"}
	}
	return nil
}

// allow lists the methods of an endpoint.
func (e Endpoint) allow() string {
	if e.Method == http.MethodGet {
		return "GET, HEAD"
	}
	return e.Method
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
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return true
	case "same-origin":
		// The browser has compared them, which we can't do behind a proxy that has the TLS; no page can set this header.
		return false
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

// followsLink reports whether a request is a person's way from another web page to this one. That page sees nothing of
// the answer, and may not put it into a frame.
func followsLink(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" && r.Header.Get("Origin") == ""
}

// refuse answers a request that isn't served. Denials are recorded.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, f *refusal) {
	h.cfg.Log.Info().Int("status", f.status).Stringer("code", f.code).Str("error", f.text).Str("remote", r.RemoteAddr).
		Msg("admin request refused")
	if f.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if f.allow != "" {
		w.Header().Set("Allow", f.allow)
	}
	h.write(w, f.status, map[string]any{"error": errorView{cmp.Or(f.detail, f.text), f.code.String(), execution.OriginCaller.String()}})
}
