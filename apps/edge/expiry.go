package edge

import (
	"fmt"
	"slices"
	"time"

	"iop/apps/edge/internal/node"
)

// warnBefore is how long before its end a certificate is worth a word in /readyz: time enough for whoever makes them.
const warnBefore = 30 * 24 * time.Hour

// expiries are when the certificates end that the edge relies on: "edge" is its own chain on the listener of nodes, "ca"
// the last of the CAs that nodes are known by (while they are changed there are two), "http" that of callers' listener.
func (g *graph) expiries() map[string]time.Time {
	ends := map[string]time.Time{}
	if g.identity != nil {
		m := g.identity.Current()
		ends["edge"], ends["ca"] = m.NotAfter(), m.TrustEnds()
	}
	if c := g.callers.TLSConfig; c != nil && len(c.Certificates) > 0 && c.Certificates[0].Leaf != nil {
		ends["http"] = c.Certificates[0].Leaf.NotAfter
	}
	return ends
}

// whose says to people what a certificate is for.
func whose(what string) string {
	switch what {
	case "edge":
		return "the edge's own certificate"
	case "ca":
		return "the CA that nodes are known by"
	}
	return "the certificate of callers' listener"
}

// warnings says what will be wrong, or isn't as it should be, though the edge takes work. Whoever reaches the admin
// listener may read it: it names no node.
func (g *graph) warnings() []string {
	var all []string
	soon := time.Now().Add(warnBefore)
	ends := g.expiries()
	for _, what := range []string{"edge", "ca", "http"} {
		if at, known := ends[what]; known && at.Before(soon) {
			all = append(all, fmt.Sprintf("%s ends on %s; renew it", whose(what), at.UTC().Format(time.DateOnly)))
		}
	}
	nodes := slices.DeleteFunc(g.live.registry.Health(), func(h node.Health) bool {
		return h.CertificateEnds.IsZero() || h.CertificateEnds.After(soon)
	})
	if n := len(nodes); n > 0 {
		all = append(all, fmt.Sprintf("certificates of %d connected nodes end within 30 days; iop_node_identity_not_after_seconds names them", n))
	}
	if g.cfg.InsecurePlaintext {
		all = append(all, "insecure: tokens and prompts cross the network to nodes unencrypted (insecure_plaintext)")
	}
	return all
}
