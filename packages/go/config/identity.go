package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"iop/packages/go/identity"
)

// The modes of an Edge.
const (
	modeDev     = "dev"
	modeManaged = "managed"
)

// Managed reports whether nodes must prove who they are by certificates.
func (e *Edge) Managed() bool { return e.Mode == modeManaged }

// Identity is where the Edge's identity is kept, in mode managed.
func (e *Edge) Identity() identity.Config {
	return identity.Config{Files: identity.Files{Cert: e.TLS.Cert, Key: e.TLS.Key, CA: e.TLS.CA}, TrustDomain: e.TLS.TrustDomain}
}

// Identity is where the node's identity is kept, if it has one. The Edge that it expects is of the same trust domain.
func (n *Node) Identity() identity.Config {
	return identity.Config{Files: identity.Files{Cert: n.TLS.Cert, Key: n.TLS.Key, CA: n.TLS.CA},
		TrustDomain: identity.ID(n.TLS.EdgeSPIFFEID).TrustDomain()}
}

// checkMode checks that the mode, and what it needs, go together: what looks like encryption and isn't is refused.
func (d *decoder) checkMode(e *Edge) {
	switch {
	case e.Mode != modeDev && e.Mode != modeManaged:
		d.unknownWord("mode", "mode", e.Mode, modeDev, modeManaged)
	case e.Managed() && e.TLS == nil && !d.bad["tls"]:
		d.add("mode", "managed needs tls: cert, key, ca and trust_domain; iop-edge ca init makes them for a first setup")
	case e.Managed() && e.InsecurePlaintext:
		d.add("insecure_plaintext", "has no place in mode managed, which is never plaintext; remove it")
	case !e.Managed() && e.TLS != nil:
		d.add("tls", "is for mode: managed; in mode dev the node listener would be plaintext all the same. "+
			"Set mode: managed, or remove it")
	}
	if t := e.TLS; t != nil && e.Managed() {
		d.needs("tls", "cert", t.Cert, "key", t.Key, "ca", t.CA)
		switch {
		case t.TrustDomain == "":
			d.add("tls.trust_domain", "is missing; name the SPIFFE trust domain of the certificates, like iop.example")
		case !identity.ValidTrustDomain(t.TrustDomain):
			d.add("tls.trust_domain", "%s can't be a trust domain: lower-case letters, digits, . _ -", quote(t.TrustDomain))
		}
	}
}

// needs refuses keys of a section that are empty.
func (d *decoder) needs(path string, pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if p := join(path, pairs[i]); pairs[i+1] == "" {
			d.add(p, "is missing; %s needs it", path)
		}
	}
}

// checkIdentities checks which certificate each node is due to show, and fills in what mode managed takes by default.
func (d *decoder) checkIdentities(e *Edge) {
	ids := newUnique(d, "SPIFFE ID")
	for i := range e.Nodes {
		n, p := &e.Nodes[i], index("nodes", i)
		managed := e.Managed() && e.TLS != nil && identity.ValidTrustDomain(e.TLS.TrustDomain)
		if n.SPIFFEID == "" && managed && ValidID(n.ID) {
			n.SPIFFEID = string(identity.NodeID(e.TLS.TrustDomain, n.ID))
		}
		if n.SPIFFEID == "" {
			continue
		}
		id, err := identity.ParseID(n.SPIFFEID)
		switch {
		case err != nil:
			d.add(p+".spiffe_id", "%s %v", quote(n.SPIFFEID), err)
		case managed && id.TrustDomain() != e.TLS.TrustDomain:
			d.add(p+".spiffe_id", "%s isn't in tls.trust_domain (%s)", quote(n.SPIFFEID), e.TLS.TrustDomain)
		default:
			ids.add(p+".spiffe_id", n.SPIFFEID, n.SPIFFEID)
		}
	}
}

// checkNodeTLS checks what a node's identity needs.
func (d *decoder) checkNodeTLS(n *Node) {
	if n.TLS == nil {
		if n.PinnedCA != "" && !d.bad["tls"] {
			d.add("token", "is a join string that names a CA, so the link is to be encrypted: add tls with cert, key, ca and edge_spiffe_id")
		}
		return
	}
	d.needs("tls", "cert", n.TLS.Cert, "key", n.TLS.Key, "ca", n.TLS.CA)
	if n.TLS.EdgeSPIFFEID == "" {
		d.add("tls.edge_spiffe_id", "is missing; name the Edge's identity, as iop-edge ca inspect shows it")
	} else if _, err := identity.ParseID(n.TLS.EdgeSPIFFEID); err != nil {
		d.add("tls.edge_spiffe_id", "%s %v", quote(n.TLS.EdgeSPIFFEID), err)
	}
}

// openEdgeIdentity checks that the files of an Edge's identity can be used.
func (d *decoder) openEdgeIdentity(e *Edge) {
	if e.Managed() && e.TLS != nil && d.err() == nil {
		d.openIdentity(e.Identity())
	}
}

// openNodeIdentity checks that the files of a node's identity can be used, and that they trust the pinned CA.
func (d *decoder) openNodeIdentity(n *Node) {
	if n.TLS == nil || d.err() != nil {
		return
	}
	s := d.openIdentity(n.Identity())
	if s == nil || n.PinnedCA == "" || Pinned(s.Current(), n.PinnedCA) {
		return
	}
	d.add("tls.ca", "%s doesn't hold the CA that the token's join string names (SHA-256 %s…): it isn't the Edge's, or the CA "+
		"was rotated since; check it with iop-edge ca inspect, and then make a new token", n.TLS.CA, n.PinnedCA[:16])
}

// Pinned reports whether the CA with this fingerprint (SHA-256 in hex) is among those that are trusted.
func Pinned(m *identity.Material, fingerprint string) bool {
	for _, ca := range m.CAs() {
		if sum := sha256.Sum256(ca.Raw); hex.EncodeToString(sum[:]) == fingerprint {
			return true
		}
	}
	return false
}

func (d *decoder) openIdentity(cfg identity.Config) *identity.Source {
	s, err := identity.Open(cfg)
	var bad *identity.FileError
	switch {
	case errors.As(err, &bad):
		d.add("tls."+bad.Key, "%s", bad)
	case err != nil:
		d.add("tls", "can't be used: %v", err)
	}
	return s
}

var serialNumber = regexp.MustCompile(`^[0-9a-f]{1,40}$`)

// serial reads a certificate's serial number, as iop-edge ca inspect and openssl show it.
func (d *decoder) serial(path, text string) string {
	s := strings.ReplaceAll(strings.ToLower(text), ":", "")
	if !serialNumber.MatchString(s) {
		d.add(path, "must be a certificate's serial number in hex, as iop-edge ca inspect shows it")
		return ""
	}
	if s = strings.TrimLeft(s, "0"); s == "" {
		s = "0"
	}
	return s
}

// Accepts reports why the certificate of a peer isn't the node's, "" if it is: another identity, a serial number that
// was revoked, or one that has expired. It says nothing about the node's token.
func (n *NodeRecord) Accepts(p *identity.Peer, now time.Time) string {
	switch {
	case p == nil:
		return "the node showed no certificate"
	case string(p.ID) != n.SPIFFEID:
		return "the certificate is of another identity than the node's record names"
	case slices.Contains(n.RevokedSerials, p.Serial):
		return "the certificate's serial number is revoked in the node's record"
	case !now.Before(p.NotAfter):
		return "the certificate has expired"
	}
	return ""
}
