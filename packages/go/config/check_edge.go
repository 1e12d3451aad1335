package config

import (
	"crypto/tls"
	"net/url"
	"os"
	"slices"
	"strings"
)

// checkEdge checks what goes beyond the type of one value: ranges, references and what must not stand together.
func (d *decoder) checkEdge(e *Edge) {
	d.checkMode(e)
	if e.StateDir == "" {
		d.add("state_dir", "is empty; name a directory")
	}
	e.StateDir = d.resolve(e.StateDir)
	d.checkListen(e)
	d.checkNodes(e.Nodes)
	d.checkIdentities(e)
	d.checkPrincipals(e)
	d.checkSlots(e)
	d.checkRoutes(e)
	for i, origin := range e.CORS.Origins {
		d.checkOrigin(index("cors.origins", i), origin)
	}
	d.checkLimits(&e.Limits)
	d.checkEdgeTimers(&e.Timers)
	d.checkLog(&e.Log)
}

func (d *decoder) checkListen(e *Edge) {
	l := &e.Listen
	d.address("listen.nodes", l.Nodes, true)
	d.address("listen.http", l.HTTP, true)
	if l.Admin != "" {
		d.address("listen.admin", l.Admin, true)
	}
	d.distinctListeners(l)
	if len(e.Principals) == 0 && !Loopback(l.HTTP) {
		d.add("listen.http", "%s isn't on loopback and no principals are configured, so anyone could use it; add a "+
			"principal (iop-edge key new NAME makes its key), or listen on 127.0.0.1", quote(l.HTTP))
	}
	if !e.Managed() && !e.InsecurePlaintext && !Loopback(l.Nodes) {
		d.add("listen.nodes", "%s isn't on loopback, and without TLS tokens and prompts cross the network unencrypted; "+
			"use mode: managed, listen on 127.0.0.1 behind a tunnel, or accept it with insecure_plaintext: true", quote(l.Nodes))
	}
	if l.Admin != "" && len(e.AdminKeyHashes) == 0 && !Loopback(l.Admin) {
		d.add("listen.admin", "%s isn't on loopback and there are no admin_key_hashes, so anyone could administer "+
			"this Edge; add one, or listen on 127.0.0.1", quote(l.Admin))
	}
	if l.HTTPTLS != nil {
		d.checkTLSFiles("listen.http_tls", l.HTTPTLS)
	}
}

func (d *decoder) distinctListeners(l *Listen) {
	seen := map[string]string{}
	for _, s := range []struct{ path, address string }{
		{"listen.nodes", l.Nodes}, {"listen.http", l.HTTP}, {"listen.admin", l.Admin},
	} {
		if s.address == "" || strings.HasSuffix(s.address, ":0") {
			continue
		}
		if first := seen[s.address]; first != "" {
			d.add(s.path, "%s is the address of %s already; each listener needs its own", quote(s.address), first)
		}
		seen[s.address] = s.path
	}
}

func (d *decoder) checkTLSFiles(p string, f *TLSFiles) {
	for _, s := range []struct{ path, file string }{{p + ".cert", f.Cert}, {p + ".key", f.Key}} {
		if s.file == "" {
			d.add(s.path, "is missing; TLS needs both cert and key")
			return
		}
	}
	if info, err := os.Stat(f.Key); err == nil && info.Mode().Perm()&0o007 != 0 {
		d.add(p+".key", "%s is open to every user of this machine (mode %04o); chmod 600 it", f.Key, info.Mode().Perm())
		return
	}
	if _, err := tls.LoadX509KeyPair(f.Cert, f.Key); err != nil {
		d.add(p, "certificate and key can't be used: %v", err)
	}
}

func (d *decoder) checkPrincipals(e *Edge) {
	ids, hashes := newUnique(d, "principal id"), newUnique(d, "key hash")
	for i, h := range e.AdminKeyHashes {
		if h != "" {
			hashes.add(index("admin_key_hashes", i), h, "this key")
		}
	}
	var models []string
	for i := range e.Routes {
		models = append(models, e.Routes[i].Model)
	}
	for i := range e.Principals {
		c, p := &e.Principals[i], index("principals", i)
		if d.id(p+".id", c.ID) {
			ids.add(p+".id", c.ID, c.ID)
		}
		if c.ID == Anonymous {
			d.add(p+".id", "%q stands for callers without a key; choose another", c.ID)
		}
		if len(c.KeyHashes) == 0 {
			d.add(p+".key_hashes", "is missing, so this caller can't get in; iop-edge key new %s makes a key",
				idOr(c.ID, "PRINCIPAL"))
		}
		for j, h := range c.KeyHashes {
			if h != "" {
				hashes.add(index(p+".key_hashes", j), h, "this key")
			}
		}
		d.rangeOf(p+".weight", int64(c.Weight), 1, 1000)
		d.rangeOf(p+".limits.concurrency", int64(c.Limits.Concurrency), 0, 1_000_000)
		d.rangeOf(p+".limits.requests_per_minute", int64(c.Limits.RequestsPerMinute), 0, 1_000_000)
		d.rangeOf(p+".limits.tokens_per_minute", int64(c.Limits.TokensPerMinute), 0, 1_000_000_000_000)
		d.rangeOf(p+".limits.tokens_per_day", int64(c.Limits.TokensPerDay), 0, 1_000_000_000_000)
		for j, model := range c.Routes {
			if !slices.Contains(models, model) {
				d.dangling(index(p+".routes", j), "there is no route", model, models)
			}
		}
	}
}

func (d *decoder) checkOrigin(p, origin string) {
	if origin == "*" {
		return
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") ||
		origin != u.Scheme+"://"+u.Host {
		d.add(p, `%s isn't an origin; write scheme://host[:port] without a path, or "*"`, quote(origin))
	}
}

func (d *decoder) checkLimits(l *Limits) {
	const kib, gib = 1 << 10, 1 << 30
	d.rangeOf("limits.body", l.Body, kib, 16*gib)
	d.rangeOf("limits.body_in_memory", l.BodyInMemory, 0, gib)
	d.rangeOf("limits.body_memory", l.BodyMemory, kib, 1024*gib)
	d.rangeOf("limits.header", l.Header, 4*kib, 32*kib)
	d.rangeOf("limits.connections", int64(l.Connections), 1, 1_000_000)
	d.rangeOf("limits.slow_answers", int64(l.SlowAnswers), 1, 1_000_000)
	d.rangeOf("limits.unregistered", int64(l.Unregistered), 1, 65_536)
	d.rangeOf("limits.handshakes", int64(l.Handshakes), 1, 65_536)
	if l.BodyInMemory > l.Body {
		d.add("limits.body_in_memory", "is more than limits.body")
	}
	if l.Body > l.BodyMemory {
		d.add("limits.body_memory", "is less than limits.body, so that the longest body would never be accepted")
	}
	if l.Handshakes > l.Unregistered {
		d.add("limits.handshakes", "is more than limits.unregistered")
	}
}

func (d *decoder) checkEdgeTimers(t *EdgeTimers) {
	d.timers("timers", t, "drain")
	if t.Heartbeat >= t.Dead {
		d.add("timers.heartbeat", "%s isn't less than timers.dead (%s), so that every quiet link would be cut",
			t.Heartbeat, t.Dead)
	}
	if t.Probe >= t.Handshake {
		d.add("timers.probe", "%s isn't less than timers.handshake (%s), which includes it", t.Probe, t.Handshake)
	}
}
