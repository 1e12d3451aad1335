package sim

import (
	"context"
	"strconv"
	"time"

	"iop/apps/edge"
)

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
