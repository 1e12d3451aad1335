package config

import (
	"net/textproto"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/packages/go/httprules"
)

// checkSlots checks profiles, slots, and what lends the keys.
func (d *decoder) checkSlots(e *Edge) {
	profiles := newUnique(d, "profile id")
	for i := range e.Profiles {
		p, at := &e.Profiles[i], index("profiles", i)
		if d.id(at+".id", p.ID) {
			profiles.add(at+".id", p.ID, p.ID)
		}
		d.checkProfile(at, p)
	}
	slots := newUnique(d, "slot id")
	for i := range e.Slots {
		s, at := &e.Slots[i], index("slots", i)
		if d.id(at+".id", s.ID) {
			slots.add(at+".id", s.ID, s.ID)
		}
		d.checkSlot(at, s, e)
	}
	if e.Lease.SigningKey == "" && e.StateDir != "" {
		e.Lease.SigningKey = signingKeyIn(e.StateDir)
	}
	d.between("lease.ttl", e.Lease.TTL, time.Second, 2*time.Minute, "1s to 2m")
	if len(e.Slots) > 0 && e.Mode == modeDev {
		d.add("slots", "need mode: managed: a key is lent only to a node that proved who it is")
	}
}

func (d *decoder) checkSlot(at string, s *Slot, e *Edge) {
	if s.Source.Kind == "" {
		d.add(at+".source", "is missing; give %s", sourceForms)
	}
	switch {
	case s.Profile == "":
		d.add(at+".profile", "is missing; name the profile by which the key is used")
	case profileOf(e, s.Profile) == nil:
		d.dangling(at+".profile", "there is no profile", s.Profile, idsOf(e.Profiles, func(p *Profile) string { return p.ID }))
	}
	nodes := idsOf(e.Nodes, func(n *NodeRecord) string { return n.ID })
	named := newUnique(d, "node in this list")
	for i, id := range s.Nodes {
		p := index(at+".nodes", i)
		if !slices.Contains(nodes, id) {
			d.dangling(p, "there is no node", id, nodes)
		}
		named.add(p, id, id)
	}
	d.between(at+".refresh", s.Refresh, time.Second, 24*time.Hour, "1s to 24h")
	if s.StaleMax < s.Refresh {
		d.add(at+".stale_max", "%s is less than refresh (%s), so that one failure to read the source would disable the slot", s.StaleMax, s.Refresh)
	}
}

func (d *decoder) between(path string, v, low, high time.Duration, text string) {
	if v < low || v > high {
		d.add(path, "must be %s", text)
	}
}

func idsOf[T any](list []T, id func(*T) string) []string {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = id(&list[i])
	}
	return ids
}

func profileOf(e *Edge, id string) *Profile {
	at := slices.IndexFunc(e.Profiles, func(p Profile) bool { return p.ID == id })
	if at < 0 {
		return nil
	}
	return &e.Profiles[at]
}

func slotOf(e *Edge, id string) *Slot {
	at := slices.IndexFunc(e.Slots, func(s Slot) bool { return s.ID == id })
	if at < 0 {
		return nil
	}
	return &e.Slots[at]
}

// credentialHeaders are the fields that may carry a key. A key in a query is logged on its way, so that there is none.
func credentialHeaders() []string {
	return []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"}
}

// bearer is the one scheme there is.
const bearer = "Bearer"

// checkProfile checks a profile and brings it into the form in which it is compared.
func (d *decoder) checkProfile(at string, p *Profile) {
	p.Origin = d.origin(at+".origin", p.Origin)
	if len(p.Paths) == 0 {
		d.add(at+".paths", `is missing; list the requests that the key may go with, like ["POST /v1/chat/completions"]`)
	}
	listed := newUnique(d, "path in this list")
	for i, path := range p.Paths {
		d.profilePath(index(at+".paths", i), path)
		listed.add(index(at+".paths", i), path, path)
	}
	header := textproto.CanonicalMIMEHeaderKey(p.Header)
	if !slices.Contains(credentialHeaders(), header) {
		d.unknownWord(at+".header", "header that may carry a key", p.Header, credentialHeaders()...)
	}
	p.Header = header
	if _, given := d.lines[at+".scheme"]; !given && header == "Authorization" {
		p.Scheme = bearer
	}
	if p.Scheme != "" && p.Scheme != bearer {
		d.add(at+".scheme", `must be Bearer, or "" for none`)
	}
}

// origin returns an origin in the one form in which origins are compared.
func (d *decoder) origin(path, s string) string {
	const like = "write it like https://api.example.com or https://api.example.com:8443, without a path"
	host, tls := cutFold(s, "https://")
	_, plain := cutFold(s, "http://")
	name, port, hasPort := host, "443", false
	if at := strings.LastIndexByte(host, ':'); at > strings.LastIndexByte(host, ']') {
		name, port, hasPort = host[:at], host[at+1:], true
	}
	number, err := strconv.Atoi(port)
	switch {
	case s == "":
		d.add(path, "is missing; %s", like)
	case plain:
		d.add(path, "is a plaintext_origin: a key is never sent without TLS; use https://")
	case !tls || !originHost(name):
		d.add(path, "isn't an origin; %s", like)
	case err != nil || number < 1 || number > 65535 || hasPort && port != strconv.Itoa(number):
		d.add(path, "has no valid port; ports are 1 to 65535")
	default:
		return "https://" + strings.ToLower(name) + ":" + port
	}
	return s
}

func cutFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// originHost reports whether s is a host name or an address, and nothing that a URL's parser would read otherwise.
func originHost(s string) bool {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		return ok && inner != "" && strings.Trim(inner, "0123456789abcdefABCDEF:.") == ""
	}
	return s != "" && strings.Trim(s, ".-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// profilePath checks one request that a key may go with.
func (d *decoder) profilePath(at, s string) {
	method, path, ok := strings.Cut(s, " ")
	switch {
	case !ok || httprules.CheckMethod(method) != nil || !strings.HasPrefix(path, "/"):
		d.add(at, `%s must be a method and a path, like "POST /v1/chat/completions"`, quote(s))
	case strings.Contains(path, "*"):
		d.add(at, "%s has a star; each path is listed as a whole", quote(s))
	default:
		if err := httprules.CheckTarget(path, ""); err != nil {
			d.add(at, "%s: %v", quote(s), err)
		}
	}
}

// checkRouteSlot checks that a route's key can only go where the slot's profile says.
func (d *decoder) checkRouteSlot(p string, r *Route, e *Edge) {
	if r.Slot == "" {
		return
	}
	slot := slotOf(e, r.Slot)
	switch {
	case e.Mode == modeDev:
		d.add(p+".slot", "needs mode: managed: a key is lent only to a node that proved who it is")
		return
	case slot == nil:
		d.dangling(p+".slot", "there is no slot", r.Slot, idsOf(e.Slots, func(s *Slot) string { return s.ID }))
		return
	case r.Adapter == "":
		d.add(p+".adapter", "is missing; a route with a slot names its adapter, so that it is known where the key goes")
		return
	}
	r.SlotNodes = slot.Nodes
	if profile := profileOf(e, slot.Profile); profile != nil && !d.bad[p+".adapter"] {
		d.checkWhereKeysGo(p+".slot", r, slot, profile, e)
	}
}

// checkWhereKeysGo checks the adapters that would be given the key of a route's slot, and that there is one.
func (d *decoder) checkWhereKeysGo(at string, r *Route, slot *Slot, profile *Profile, e *Edge) {
	serving := 0
	for i := range e.Nodes {
		n := &e.Nodes[i]
		a := n.adapter(r.Adapter)
		if a == nil || !slices.Contains(slot.Nodes, n.ID) || !r.mayUse(n) {
			continue
		}
		serving++
		if why := unfit(a, profile); why != "" {
			d.add(at, "the key of slot %s can't go to adapter %s of node %s: %s", quote(slot.ID), quote(a.Name), quote(n.ID), why)
		}
	}
	if serving == 0 {
		d.add(at, "no node of slot %s may serve this route with an adapter %s; list the nodes that may be given the key in the slot's nodes",
			quote(slot.ID), quote(r.Adapter))
	}
}

// mayUse reports whether the node is in the route's pool.
func (r *Route) mayUse(n *NodeRecord) bool {
	return (len(r.Nodes) == 0 || slices.Contains(r.Nodes, n.ID)) && n.HasLabels(r.Labels)
}

func (n *NodeRecord) adapter(name string) *Adapter {
	at := slices.IndexFunc(n.Adapters, func(a Adapter) bool { return a.Name == name })
	if at < 0 {
		return nil
	}
	return &n.Adapters[at]
}

// unfit says why a key of this profile may not go to an adapter's provider, "" if it may.
func unfit(a *Adapter, p *Profile) string {
	switch a.Kind {
	case "openai", "anthropic", "ollama":
	default:
		return "its kind " + quote(a.Kind) + " names no provider; use openai, anthropic or ollama with a base_url"
	}
	base, err := httprules.ParseBase(a.BaseURL)
	switch {
	case err != nil: // said where it stands
		return ""
	case !base.TLS:
		return "its base_url is a plaintext_origin; a key is never sent without TLS"
	case base.Origin() != p.Origin:
		return "its base_url is at " + quote(base.Origin()) + ", and profile " + quote(p.ID) + " sends the key to " + quote(p.Origin) + " only"
	}
	return ""
}

// signingKeyIn returns where the key lies that leases are signed with, unless lease.signing_key says otherwise.
func signingKeyIn(stateDir string) string { return filepath.Join(stateDir, "lease.key") }
