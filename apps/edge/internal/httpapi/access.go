package httpapi

import (
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
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
			"no valid API key: send one, as Authorization: Bearer KEY or as x-api-key: KEY")
	}
	c.tunnel.Principal = c.principal.ID
	return nil
}

// callerKey returns the key that a request shows. It may stand in more than one header, as clients send it that know two
// APIs; two different ones are ambiguous and so none, and a bad one isn't healed by a good one.
func callerKey(h http.Header) (key string, ok bool) {
	for _, name := range []string{"Authorization", "X-Api-Key", "Api-Key"} {
		values := h[name]
		if len(values) == 0 {
			continue
		}
		shown := values[0]
		if name == "Authorization" {
			scheme, credential, _ := strings.Cut(shown, " ")
			if !strings.EqualFold(scheme, "Bearer") {
				return "", false
			}
			shown = credential
		}
		if len(values) > 1 || shown == "" || len(shown) > longestKeyText || ok && shown != key {
			return "", false
		}
		key, ok = shown, true
	}
	return key, ok
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
	h.Set("Access-Control-Expose-Headers", "X-Request-Id, X-IOP-Run-Id, X-IOP-Node, X-IOP-Queue-Ms, X-IOP-Queue-Position, Retry-After")
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
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// checkHost refuses a request that came by another name than this machine's own to a listener that asks for no key: a
// page may have its own name point here, and the browser takes the two for one origin (DNS rebinding). A request without
// a Host isn't a browser's.
func checkHost(host string) *refusal {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if host == "" || isLoopbackName(name) {
		return nil
	}
	ref := badRequest("", "without principals this edge answers to localhost and loopback addresses only; configure principals to serve other names")
	ref.status = http.StatusForbidden
	return ref
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
