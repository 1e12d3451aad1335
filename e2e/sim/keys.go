package sim

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
)

// keys are the providers' keys of a seed in mode managed: each edge has one slot, whose key its operator replaces, disables
// and revokes. What a provider is shown is held against what was in force.
type keys struct {
	w   *world
	pki string // where the identities lie
	log *leakScan

	mu      sync.Mutex
	made    map[string][]*providerKey // by edge, the last is the one in its file
	enabled map[string]time.Duration  // by edge, when it was last enabled
	spent   []spent
}

// providerKey is one key that a slot had.
type providerKey struct {
	text   string
	from   time.Duration
	loaded bool // the edge has it
	// off are the times at which it didn't count, as its operator was told. The last may have no end.
	off []offTime
}

// offTime is a time in which a key isn't to be used, but by the runs that had sent it.
type offTime struct {
	from, until time.Duration // until 0 = for good
	running     []string
	unanswered  []string
}

// WriteIdentities puts the identities that seeds in mode managed need into dir. They are good at the time of bubbles, which
// begin in the year 2000.
func WriteIdentities(t testing.TB, dir string) {
	good := func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	ca := identitytest.NewCA(t, "ca", good)
	put := func(name string, leaf identitytest.Leaf) {
		at := filepath.Join(identities(dir), name)
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		identitytest.Write(t, at, leaf, ca)
	}
	put("edge", ca.Edge(t, good))
	for i := range mostNodes {
		id := fmt.Sprintf("node%d", i)
		put(id, ca.Node(t, id, good))
	}
}

func identities(dir string) string { return filepath.Join(dir, "identities") }

// newKeys returns what a seed in mode managed has; nil = its mode is dev.
func newKeys(w *world) *keys {
	if !newDice(w.seed, "mode").chance(30) {
		return nil
	}
	return &keys{w: w, pki: identities(filepath.Dir(w.dir)), log: &leakScan{}, made: map[string][]*providerKey{}, enabled: map[string]time.Duration{}}
}

// Where keys go, and with what.
const (
	keyOrigin = "https://provider:443"
	keyPath   = "/v1/chat/completions"
	slotID    = "main"
	leaseTTL  = time.Minute
)

// manage makes a plan's configuration one of mode managed.
func (k *keys) manage(e *config.Edge, host string) {
	if k == nil {
		return
	}
	e.Mode = "managed"
	e.TLS = &config.EdgeTLS{Cert: k.pki + "/edge/cert.pem", Key: k.pki + "/edge/key.pem", CA: k.pki + "/edge/ca.pem",
		TrustDomain: identitytest.TrustDomain}
	slot := config.Slot{ID: slotID, Source: config.SecretSource{Kind: config.SourceFile, Name: k.file(host)}, Profile: "p",
		Refresh: 30 * time.Second, StaleMax: 5 * time.Minute}
	for i := range e.Nodes {
		n := &e.Nodes[i]
		n.SPIFFEID = string(identity.NodeID(identitytest.TrustDomain, n.ID))
		slot.Nodes = append(slot.Nodes, n.ID)
		for j := range n.Adapters {
			a := &n.Adapters[j]
			a.Options, a.BaseURL = map[string]string{"version": a.BaseURL}, "https://provider" // a change of it is one of the adapter all the same
		}
	}
	e.Profiles = []config.Profile{{ID: "p", Origin: keyOrigin, Paths: []string{"POST " + keyPath}, Header: "Authorization", Scheme: "Bearer"}}
	e.Slots = []config.Slot{slot}
	e.Lease = config.Lease{TTL: leaseTTL, SigningKey: filepath.Join(e.StateDir, "lease.key")}
	for i := range e.Routes {
		if r := &e.Routes[i]; r.Adapter != "" {
			r.Slot, r.SlotNodes, r.Target = slotID, slot.Nodes, target
		}
	}
}

// node is a node's identity; nil = mode dev.
func (k *keys) node(id string) *config.NodeTLS {
	if k == nil {
		return nil
	}
	at := k.pki + "/" + id
	return &config.NodeTLS{Cert: at + "/cert.pem", Key: at + "/key.pem", CA: at + "/ca.pem",
		EdgeSPIFFEID: string(identity.EdgeID(identitytest.TrustDomain))}
}

func (k *keys) file(host string) string { return filepath.Join(k.w.dir, host+".key") }

// prefix is what every key begins with, and nothing else.
const prefix = "sk-sim-"

// put writes another key into the file of an edge's slot.
func (k *keys) put(host string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.made[host])
	key := &providerKey{text: fmt.Sprintf("%s%s-%d-%016x", prefix, host, n, hashOf(k.w.seed, "key", host, strconv.Itoa(n))), from: k.w.now()}
	k.made[host] = append(k.made[host], key)
	k.w.tell(host, "its slot's file has key %d", n)
	if err := os.MkdirAll(k.w.dir, 0o700); err != nil {
		panic(err)
	}
	if err := os.WriteFile(k.file(host)+".new", []byte(key.text), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(k.file(host)+".new", k.file(host)); err != nil {
		panic(err)
	}
}

// current is the key in the file, and whether the edge is known to have it.
func (k *keys) current(host string) (key *providerKey, loaded bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key = k.made[host][len(k.made[host])-1]
	return key, key.loaded
}
