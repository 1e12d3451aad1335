package edge

import (
	"fmt"
	"slices"
	"time"

	"iop/apps/edge/internal/node"
	"iop/packages/go/identity"
)

// certificates are how long those are good that the edge relies on: "edge" is its own chain on the listener of nodes, "ca"
// the last of the CAs that nodes are known by (while they are changed there are two), "http" that of callers' listener.
func (g *graph) certificates() map[string]identity.Validity {
	all := map[string]identity.Validity{}
	if g.identity != nil {
		m := g.identity.Current()
		all["edge"], all["ca"] = m.Own(), m.Trust()
	}
	if g.shown != nil {
		all["http"] = identity.Validity{Begins: g.shown.NotBefore, Ends: g.shown.NotAfter}
	}
	return all
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
	now, certificates := time.Now(), g.certificates()
	for _, what := range []string{"edge", "ca", "http"} {
		if v, known := certificates[what]; known && v.EndsSoon(now) {
			all = append(all, fmt.Sprintf("%s ends at %s; renew it", whose(what), v.Ends.UTC().Format(time.RFC3339)))
		}
	}
	nodes := slices.DeleteFunc(g.live.registry.Health(), func(h node.Health) bool {
		return h.Certificate.Ends.IsZero() || !h.Certificate.EndsSoon(now)
	})
	if n := len(nodes); n > 0 {
		all = append(all, fmt.Sprintf("certificates of %d connected nodes end soon; iop_node_identity_not_after_seconds names them", n))
	}
	if g.cfg.InsecurePlaintext {
		all = append(all, "insecure: tokens and prompts cross the network to nodes unencrypted (insecure_plaintext)")
	}
	return all
}
