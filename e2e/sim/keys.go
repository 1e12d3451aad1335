package sim

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/apps/edge"
	"iop/apps/node"
	"iop/packages/go/config"
	"iop/packages/go/execution"
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

// spent is a credential after its request.
type spent struct {
	job        string
	credential execution.Credential
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

// planKeys draws what operators do with keys.
func (w *world) planKeys() {
	if w.keys == nil {
		return
	}
	d := newDice(w.seed, "keys")
	for i := range d.among(0, 7) {
		d := newDice(w.seed, "key change", strconv.Itoa(i))
		e := pick(d, w.edges...)
		at := d.between(2*time.Second, w.span)
		back := at + d.between(time.Millisecond, 20*time.Second)
		switch d.IntN(8) {
		case 0, 6:
			w.at(at, "", func() { w.keys.put(e.host); w.slot(e, "refresh") })
		case 1:
			w.at(at, "", func() { w.slot(e, "disable") })
			w.at(back, "", func() { w.slot(e, "enable") })
		case 2, 7:
			w.at(at, "", func() { w.slot(e, "revoke") })
			w.at(back, "", func() { w.keys.put(e.host); w.slot(e, "refresh") })
		case 3: // it is noticed by and by
			w.at(at, "", func() { w.disturb(""); w.keys.put(e.host) })
		case 4:
			w.at(at, "", func() { w.rotate(e) })
		case 5:
			w.at(at, "", func() { w.rotate(e) })
			w.at(back, "", func() { w.dropOld(e) })
		}
	}
}

// slot has an operator change an edge's slot. What the operator is told counts from when it is told.
func (w *world) slot(e *edgeHost, what string) {
	w.disturb("")
	if !e.up() {
		return
	}
	inside, host := e.inside, e.host
	w.working.Go(func() {
		s := inside.Slots()
		before, loaded := w.keys.current(host)
		began := w.now()
		do := map[string]func() (edge.SlotChange, error){
			"refresh": func() (edge.SlotChange, error) { return s.Refresh(context.Background(), slotID) },
			"disable": func() (edge.SlotChange, error) { return s.Disable(context.Background(), slotID) },
			"enable":  func() (edge.SlotChange, error) { return s.Enable(context.Background(), slotID) },
			"revoke":  func() (edge.SlotChange, error) { return s.Revoke(context.Background(), slotID, false) },
		}[what]
		if what == "enable" { // it may count again before the operator hears of it
			w.keys.on(host)
		}
		c, err := do()
		w.tell(host, "slot: %s: %s %v, %d running, unanswered %v", what, c.State, err, len(c.Running), c.Unanswered)
		w.disturb("")
		if err != nil {
			return
		}
		w.keys.changed(host, what, began, before, loaded, c)
	})
}

// rotate has an operator put another key in the place of the one that an edge signs leases with.
func (w *world) rotate(e *edgeHost) {
	w.disturb("")
	if !e.up() {
		return
	}
	inside := e.inside
	w.working.Go(func() {
		err := inside.Slots().RotateKey(context.Background())
		w.tell(e.host, "another signing key: %v", err)
		w.disturb("")
	})
}

// dropOld has an operator withdraw the oldest of the keys that an edge has signed with.
func (w *world) dropOld(e *edgeHost) {
	w.disturb("")
	if !e.up() {
		return
	}
	s := e.inside.Slots()
	all := s.Keys()
	if len(all) < 2 {
		return
	}
	w.working.Go(func() {
		err := s.DropKey(context.Background(), all[len(all)-1].ID)
		w.tell(e.host, "a signing key is withdrawn: %v", err)
		w.disturb("")
	})
}

// on notes that what was disabled may count again.
func (k *keys) on(host string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.enabled[host] = k.w.now()
	for _, key := range k.made[host] {
		for i := range key.off {
			if o := &key.off[i]; o.until == forNow {
				o.until = k.w.now()
			}
		}
	}
}

// loaded notes that an edge has begun with the key in its file.
func (k *keys) loaded(host string) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made[host][len(k.made[host])-1].loaded = true
}

// forNow is the end of a time that hasn't one yet.
const forNow = time.Duration(-1)

// changed notes since when keys don't count. before was in the file when the change began, and the edge had it then if
// loaded.
func (k *keys) changed(host, what string, began time.Duration, before *providerKey, loaded bool, c edge.SlotChange) {
	k.mu.Lock()
	defer k.mu.Unlock()
	off := offTime{from: k.w.now(), running: c.Running, unanswered: c.Unanswered}
	for _, key := range k.made[host] {
		older := key.from < before.from
		switch {
		case what == "disable" && k.enabled[host] < began: // else it was enabled before the operator heard of this
			off.until = forNow
		case what == "revoke" && (older || key == before && loaded): // one that the edge hasn't read yet is as good as before
		case what == "refresh" && c.State == "active" && older: // it was replaced
		default:
			continue
		}
		key.off = append(key.off, off)
	}
	if what == "refresh" && before == k.made[host][len(k.made[host])-1] {
		before.loaded = true
	}
}

// mend makes an edge's slot good again.
func (k *keys) mend(e *edgeHost) {
	if k == nil {
		return
	}
	k.put(e.host)
	k.on(e.host)
	s := e.inside.Slots()
	_, _ = s.Refresh(context.Background(), slotID) // a key that is new makes a revoked slot active
	c, err := s.Enable(context.Background(), slotID)
	if err != nil || c.State != "active" {
		k.w.breach("end", "%s: the slot is %s with a new key: %v", e.host, c.State, err)
	}
}

// keyed reports whether a job's provider wants a key.
func (j *job) keyed() bool { return j.kind != tunnel || j.model != "any" }

// show is a provider's driver that connects, and sends its request with the key that it was lent.
func (d *driver) show(ctx context.Context, c *call, credential execution.Credential) error {
	w, j := d.p.w, c.job
	k := w.keys
	if k == nil || !j.keyed() {
		if credential != nil {
			w.breach("I7", "%s has a key and wants none", j.id)
		}
		return nil
	}
	if credential == nil {
		w.breach("I7", "%s is called without its key", j.id)
		return nil
	}
	defer k.keep(j.id, credential)
	if err := sleep(ctx, j.connect); err != nil {
		return err
	}
	if err := credential.Bind(keyOrigin, http.MethodPost, keyPath); err != nil {
		return err
	}
	if err := sleep(ctx, j.connect/2); err != nil { // the connection takes nothing for a while
		return err
	}
	shown := 0
	send := func() error {
		return credential.Send(func(secret []byte) error {
			shown++
			k.judge(j, d.node, string(secret))
			return nil
		})
	}
	if err := send(); err != nil {
		return err
	}
	if newDice(w.seed, "again", j.id).chance(20) {
		_ = send()
	}
	if shown != 1 {
		w.breach("I7", "%s: its key was opened %d times", j.id, shown)
	}
	return nil
}

// judge holds a key that a provider is shown against what is in force at the job's edge.
func (k *keys) judge(j *job, nodeID, secret string) {
	now := k.w.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	host := k.w.edges[j.edge].host
	at := slices.IndexFunc(k.made[host], func(key *providerKey) bool { return key.text == secret })
	if at < 0 {
		k.w.breach("I7", "%s is called with something that is no key of %s", j.id, host)
		return
	}
	k.w.tell(j.id, "provider is shown key %d", at)
	for _, off := range k.made[host][at].off {
		switch {
		case off.until > 0 && off.until <= now, slices.Contains(off.running, j.id):
		case now > off.from+leaseTTL+2*time.Second:
			k.w.breach("I7", "%s: key %d was shown %v after it was withdrawn", j.id, at, now-off.from)
		case slices.Contains(off.unanswered, nodeID) || k.w.cutOff(nodeID, host, off.from-aftermath):
			// What didn't hear of it goes by its leases, which end by themselves.
		default:
			k.w.breach("I7", "%s: key %d was shown %v after everybody had taken in that it is withdrawn", j.id, at, now-off.from)
		}
	}
}

// cutOff reports whether a node may have lost an edge from sight since a time.
func (w *world) cutOff(nodeID, host string, since time.Duration) bool {
	if w.points.wasHurt() {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faulty {
		if f.until+aftermath < since {
			continue
		}
		if f.a == nodeID && (f.b == host || f.b == "") || f.a == host && (f.b == nodeID || f.b == "") || w.twins[nodeID] {
			return true
		}
	}
	return false
}

// keep notes a credential to be tried when its request is over.
func (k *keys) keep(job string, c execution.Credential) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spent = append(k.spent, spent{job, c})
}

// judgeKeys looks whether a key can still be had when nothing runs any more, and whether one got anywhere.
func (w *world) judgeKeys() {
	k := w.keys
	if k == nil {
		return
	}
	for _, s := range k.spent {
		if err := s.credential.Send(func([]byte) error { return nil }); err == nil {
			w.breach("I7", "%s: its key can be had when it is over", s.job)
		}
	}
	if k.log.found() {
		w.breach("I7", "a key is in a log")
	}
	for _, e := range w.history.sorted() {
		if strings.Contains(e.what, prefix) {
			w.breach("I7", "a key is in what was told: %s", e.what[:min(len(e.what), 40)])
		}
	}
	own := map[string]bool{}
	for _, e := range w.edges {
		own[k.file(e.host)] = true
	}
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || own[path] {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(prefix)) {
			w.breach("I7", "a key is in %s", path)
		}
		return err
	})
	if err != nil {
		w.breach("I7", "what was written can't be read: %v", err)
	}
}

// leakScan is a log that is looked through for keys.
type leakScan struct {
	mu   sync.Mutex
	leak bool
}

// Write implements io.Writer.
func (s *leakScan) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leak = s.leak || bytes.Contains(p, []byte(prefix))
	return len(p), nil
}

func (s *leakScan) found() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leak
}

// jumpClock sets a node's wall clock forward or back. Its leases are refused until it has heard the edge's time again.
func (n *nodeHost) jumpClock(by time.Duration) {
	n.w.disturb(n.host)
	n.w.tell(n.host, "its clock is set by %v", by)
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	n.jumped += by
}

// clocks are what a node's machine says of the time.
func (n *nodeHost) clocks() node.ClockReading {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return node.ClockReading{Boot: n.w.now() + n.slept, Wall: time.Now().Add(n.slept + n.jumped).UnixMilli()}
}
