package sim

import (
	"bytes"
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"iop/packages/go/execution"
)

// spent is a credential after its request.
type spent struct {
	job        string
	credential execution.Credential
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
