package config

import (
	"strings"
	"time"
)

// checkNode checks what goes beyond the type of one value, and reads the token.
func (d *decoder) checkNode(n *Node) {
	if len(n.Edges) == 0 {
		d.add("edges", "is missing; list the addresses of the Edges to dial: [\"edge.example.com:7443\"]")
	}
	edges := newUnique(d, "edge")
	for i, edge := range n.Edges {
		p := index("edges", i)
		if d.address(p, edge, false) {
			edges.add(p, strings.ToLower(edge), edge)
		}
	}
	switch {
	case d.bad["token"]:
	case n.Token.IsZero():
		d.add("token", "is missing; give file:PATH, env:NAME or cred:NAME")
	default:
		n.Token, n.PinnedCA = d.token("token", n.Token.Reveal())
	}
	d.checkProxy(n)
	d.checkNodeTLS(n)
	if n.DataDir == "" {
		d.add("data_dir", "is empty; name a directory")
	}
	n.DataDir = d.resolve(n.DataDir)
	if n.Admin.Listen != "" && d.address("admin.listen", n.Admin.Listen, true) && !Loopback(n.Admin.Listen) {
		d.add("admin.listen", "%s isn't on loopback, and this listener has no keys; listen on 127.0.0.1",
			quote(n.Admin.Listen))
	}
	d.timers("timers", &n.Timers, "drain")
	d.notAbove("timers.backoff_start", n.Timers.BackoffStart, "timers.backoff_max", n.Timers.BackoffMax)
	d.checkLog(&n.Log)
}

// checkProxy checks where the proxy is, and leaves host:port in n.Proxy.
func (d *decoder) checkProxy(n *Node) {
	switch {
	case n.Proxy == "" && !n.ProxyCredentials.IsZero():
		d.add("proxy_credentials", "there is no proxy; name it, or remove this")
	case n.Proxy != "":
		addr, ok := strings.CutPrefix(n.Proxy, "http://")
		if !ok || strings.Contains(addr, "@") {
			d.add("proxy", "must be http://HOST:PORT, without a user or a password, which stand in proxy_credentials")
			return
		}
		n.Proxy = strings.TrimSuffix(addr, "/")
		d.address("proxy", n.Proxy, false)
	}
	if n.ProxyCredentials.IsZero() || d.bad["proxy_credentials"] {
		return
	}
	text, name, ok := d.secret("proxy_credentials", n.ProxyCredentials.Reveal())
	if ok && !strings.Contains(text, ":") {
		d.add("proxy_credentials", "%s must hold USER:PASSWORD", name)
	}
	n.ProxyCredentials = NewSecret(text)
}

func (d *decoder) notAbove(path string, v time.Duration, other string, limit time.Duration) {
	if v > limit {
		d.add(path, "%s is more than %s (%s)", v, other, limit)
	}
}
