package httpapi

import (
	"crypto/sha256"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// anonymous is the principal of a listener without principals.
const anonymous = "anonymous"

// longestKeyText bounds what is hashed for a stranger.
const longestKeyText = 1024

// authenticate finds the principal of a call. Nothing that the caller sent gets into the refusal.
func (h *Handler) authenticate(c *call) *refusal {
	if c.state.Anonymous() {
		c.tunnel.Principal = anonymous
		return h.origin.checkAnonymous(c.r.Header.Get("Origin"))
	}
	key, ok := callerKey(c.r.Header)
	if ok {
		c.principal = c.state.PrincipalByKeyHash(sha256.Sum256([]byte(key)))
	}
	if c.principal == nil {
		return refuseCode(execution.CodeUnauthorized, execution.OriginCaller,
			"no valid API key: send it as Authorization: Bearer KEY")
	}
	c.tunnel.Principal = c.principal.ID
	return nil
}

// callerKey returns the key that a request shows. The first header of the list that is there decides, so that a bad
// key isn't healed by a second one; two values in one header are ambiguous and so none.
func callerKey(h http.Header) (string, bool) {
	if values := h["Authorization"]; len(values) > 0 {
		scheme, key, ok := strings.Cut(values[0], " ")
		return key, ok && len(values) == 1 && strings.EqualFold(scheme, "Bearer") && key != "" && len(key) <= longestKeyText
	}
	for _, name := range []string{"X-Api-Key", "Api-Key"} {
		if values := h[name]; len(values) > 0 {
			return values[0], len(values) == 1 && values[0] != "" && len(values[0]) <= longestKeyText
		}
	}
	return "", false
}

// mayUse reports whether a principal (nil = anonymous) may use a route.
func mayUse(p *config.Principal, r *config.Route) bool {
	return p == nil || len(p.Routes) == 0 || slices.Contains(p.Routes, r.Model)
}

// origins are the web pages that may call from a browser.
type origins struct {
	any  bool
	list map[string]bool
}

func newOrigins(list []string) origins {
	o := origins{list: make(map[string]bool, len(list))}
	for _, origin := range list {
		o.any = o.any || origin == "*"
		o.list[strings.ToLower(origin)] = true
	}
	return o
}

func (o origins) has(origin string) bool {
	return origin != "" && (o.any || o.list[strings.ToLower(origin)])
}

// allow lets the page of an allowed origin read the response. Credentials are never allowed: keys are headers here.
func (o origins) allow(h http.Header, origin string) {
	if len(o.list) == 0 {
		return
	}
	h.Add("Vary", "Origin")
	if !o.has(origin) {
		return
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "X-Request-Id, X-IOP-Run-Id, X-IOP-Node, X-IOP-Queue-Ms, Retry-After")
}

// checkAnonymous refuses web pages that nobody allowed on a listener that asks for no key: any page that the user of
// this machine visits could otherwise run prompts here, since a browser sends a simple POST without asking first. Pages
// of this machine itself are fine.
func (o origins) checkAnonymous(origin string) *refusal {
	if origin == "" || o.has(origin) {
		return nil
	}
	if u, err := url.Parse(origin); err == nil && isLoopbackName(u.Hostname()) {
		return nil
	}
	ref := badRequest("", "this web page's origin isn't in cors.origins")
	ref.status = http.StatusForbidden
	return ref
}

func isLoopbackName(host string) bool {
	host = strings.ToLower(host)
	return host == "localhost" || host == "127.0.0.1" || host == "::1"
}

// preflight answers a browser that asks whether a page may call; false = the request isn't such a question, or the
// page isn't allowed.
func (h *Handler) preflight(c *call, ref *refusal) bool {
	origin, method := c.r.Header.Get("Origin"), c.r.Header.Get("Access-Control-Request-Method")
	if c.r.Method != http.MethodOptions || method == "" || ref.allow == "" || !h.origin.has(origin) {
		return false
	}
	header := c.w.Header()
	h.origin.allow(header, origin)
	header.Set("Access-Control-Allow-Methods", ref.allow)
	if asked := c.r.Header.Get("Access-Control-Request-Headers"); isNameList(asked) {
		// SDKs in browsers send headers of their own invention; none of them can hurt more than a key's absence.
		header.Set("Access-Control-Allow-Headers", asked)
	}
	header.Set("Access-Control-Max-Age", "600")
	c.write(http.StatusNoContent, nil)
	return true
}

func isNameList(list string) bool {
	if list == "" || len(list) > 4096 {
		return false
	}
	for name := range strings.SplitSeq(list, ",") {
		if !validFieldName(strings.TrimSpace(name)) {
			return false
		}
	}
	return true
}
