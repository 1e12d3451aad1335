package credential

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"iop/apps/edge/internal/events"
	"iop/packages/go/credentiallease"
)

// signer is a key that leases are signed with. It is dropped when it is retired and nobody signs with it any more.
type signer struct {
	key    *credentiallease.SigningKey
	issuer *credentiallease.Issuer

	// guarded by the store's lock
	users   int
	retired bool
}

// keyring are the signing keys: the one in use, the one that comes after it when there is a rotation under way, and
// those that nodes still accept.
type keyring struct {
	current, next *signer
	old           []Key
}

const (
	signingFile = "lease.key"
	maxSigning  = 64 << 10
	nextWord    = "next"
	oldWord     = "old"
	// oldFor is how long a key that was replaced is still accepted: as long as a lease may live, and what clocks may differ.
	oldFor = credentiallease.MaxTTL + credentiallease.DefaultTolerance
	// keyWait is how long a rotation waits for nodes to take a new key in.
	keyWait = 30 * time.Second
)

// encode writes the ring: the seed of the key in use in hex, then "next SEED", then "old PUBLIC NOT-AFTER" for each.
func (r *keyring) encode() []byte {
	const line = 128 // longer than any
	b := make([]byte, 0, line*(2+len(r.old)))
	add := func(k *credentiallease.SigningKey) {
		k.UseSeed(func(seed []byte) { b = append(hex.AppendEncode(b, seed), '\n') })
	}
	add(r.current.key)
	if r.next != nil {
		b = append(b, nextWord+" "...)
		add(r.next.key)
	}
	for _, k := range r.old {
		b = fmt.Appendf(b, "%s %x %d\n", oldWord, k.Public, k.NotAfter)
	}
	return b
}

var errRing = errors.New("isn't a signing key: it must hold 64 hex digits in its first line, as this program writes it; restore it, " +
	"or take it away to have a new one made")

func (s *Store) decodeRing(data []byte) (ring keyring, err error) {
	data, ended := bytes.CutSuffix(data, []byte("\n"))
	if !ended {
		return ring, errRing
	}
	for i, line := range bytes.Split(data, []byte("\n")) {
		words := bytes.Split(line, []byte(" "))
		word := string(words[0][:min(len(words[0]), len(nextWord))]) // not a seed
		switch {
		case i == 0 && len(words) == 1:
			ring.current, err = s.signerOf(words[0])
		case i > 0 && ring.next == nil && len(words) == 2 && word == nextWord:
			ring.next, err = s.signerOf(words[1])
		case i > 0 && len(words) == 3 && word == oldWord:
			public, bad := hex.DecodeString(string(words[1]))
			until, wrong := strconv.ParseInt(string(words[2]), 10, 64)
			if bad != nil || wrong != nil || len(public) != credentiallease.SeedSize {
				return ring, errRing
			}
			ring.old = append(ring.old, Key{ID: credentiallease.KeyID(public), Public: public, NotAfter: until})
		default:
			err = errRing
		}
		if err != nil {
			return ring, err
		}
	}
	return ring, nil
}

func (s *Store) signerOf(text []byte) (*signer, error) {
	if len(text) != hex.EncodedLen(credentiallease.SeedSize) {
		return nil, errRing
	}
	seed := make([]byte, credentiallease.SeedSize)
	if _, err := hex.Decode(seed, text); err != nil {
		return nil, errRing
	}
	k, err := credentiallease.NewSigningKey(seed)
	if err != nil {
		return nil, errRing
	}
	return s.signer(k), nil
}

func (s *Store) signer(k *credentiallease.SigningKey) *signer {
	return &signer{key: k, issuer: credentiallease.NewIssuer(s.cfg.EdgeID, k)}
}

// openRing reads the signing keys, or makes the first one.
func (s *Store) openRing() error {
	data, err := readPrivate(s.cfg.SigningKey, maxSigning, false)
	defer clear(data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := makeDir(filepath.Dir(s.cfg.SigningKey)); err != nil {
			return err
		}
		return s.putRing(keyring{current: s.signer(credentiallease.GenerateSigningKey())})
	case err != nil:
		return fmt.Errorf("signing key %s %w", s.cfg.SigningKey, err)
	}
	ring, err := s.decodeRing(data)
	if err != nil {
		return fmt.Errorf("signing key %s %w", s.cfg.SigningKey, err)
	}
	s.ring = ring
	return nil
}

// putRing writes a ring and then uses it. The caller holds s.writing, or is alone.
func (s *Store) putRing(ring keyring) error {
	data := ring.encode()
	defer clear(data)
	if err := s.disk.replace(s.cfg.SigningKey, data); err != nil {
		return fmt.Errorf("signing key: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.ring
	s.ring = ring
	for _, k := range []*signer{was.current, was.next} {
		if k != nil && k != ring.current && k != ring.next {
			k.retired = true
			k.dropLocked()
		}
	}
	return nil
}

func (k *signer) dropLocked() {
	if k.retired && k.users == 0 {
		k.key.Drop()
	}
}

// Keys returns the signing keys that nodes are to trust, the one in use first.
func (s *Store) Keys() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []Key
	for _, k := range []*signer{s.ring.current, s.ring.next} {
		if k != nil {
			keys = append(keys, Key{ID: k.key.ID(), Public: k.key.Public()})
		}
	}
	return append(keys, unexpired(s.ring.old, s.cfg.Now())...)
}

// OnKeys sets who brings changed [Store.Keys] to the nodes. It returns when every connected node has taken them in, or ctx
// ends. Set it once, before Run.
func (s *Store) OnKeys(publish func(ctx context.Context)) { s.publish = publish }

// RotateKey makes a new signing key and uses it once every connected node has taken it in, or half a minute later; until
// when the old one is accepted is told, too. It is over when it returns nil. An error means that the old key is in use; a
// new one that nodes were told of already is taken by the next try.
func (s *Store) RotateKey(ctx context.Context) error {
	select {
	case s.rotating <- struct{}{}:
		defer func() { <-s.rotating }()
	case <-ctx.Done():
		return ctx.Err()
	}
	next, err := s.announce()
	if err != nil {
		return err
	}
	s.tellKeys(ctx)
	if err := s.switchTo(next); err != nil {
		return err
	}
	s.keyChanged(next, "is used to sign leases from now on")
	s.tellKeys(ctx)
	return nil
}

// announce has a next key in the ring.
func (s *Store) announce() (*signer, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	ring := s.ringNow()
	if ring.current == nil {
		return nil, errNoKeys
	}
	if ring.next != nil {
		return ring.next, nil
	}
	ring.next = s.signer(credentiallease.GenerateSigningKey())
	return ring.next, s.putRing(ring)
}

var (
	errNoKeys     = errors.New("this edge signs no leases: that takes mode managed")
	errNoSuchKey  = errors.New("there is no signing key of that id")
	errKeyDropped = errors.New("the new signing key was withdrawn before it was used")
)

func (s *Store) switchTo(next *signer) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	ring := s.ringNow()
	if ring.next != next {
		return errKeyDropped
	}
	now := s.cfg.Now() // by which nodes judge
	ring.old = append(unexpired(ring.old, now), Key{
		ID: ring.current.key.ID(), Public: ring.current.key.Public(), NotAfter: now.Add(oldFor).UnixMilli(),
	})
	ring.current, ring.next = next, nil
	return s.putRing(ring)
}

// DropKey withdraws a signing key, in an emergency: what it signed is refused as soon as nodes are told. If it is the one
// in use, another one takes its place at once, and leases are refused by nodes that don't know that one yet.
func (s *Store) DropKey(ctx context.Context, id string) error {
	if err := s.withdraw(id); err != nil {
		return err
	}
	s.tellKeys(ctx)
	return nil
}

func (s *Store) withdraw(id string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	ring := s.ringNow()
	old := slices.IndexFunc(ring.old, func(k Key) bool { return k.ID == id })
	switch {
	case ring.current == nil:
		return errNoKeys
	case ring.current.key.ID() == id:
		ring.current, ring.next = ring.next, nil
		if ring.current == nil {
			ring.current = s.signer(credentiallease.GenerateSigningKey())
		}
	case ring.next != nil && ring.next.key.ID() == id:
		ring.next = nil
	case old >= 0:
		ring.old = slices.Delete(slices.Clone(ring.old), old, old+1)
	default:
		return errNoSuchKey
	}
	if err := s.putRing(ring); err != nil {
		return err
	}
	s.cfg.Log.Warn().Str("kid", id).Msg("signing key withdrawn")
	s.publishEvent(events.Event{Kind: events.KindLeaseKeyChanged, Code: "withdrawn", Text: "signing key " + id + " was withdrawn"})
	return nil
}

func (s *Store) ringNow() keyring {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring
}

// tellKeys has nodes told and waits for them, within reason.
func (s *Store) tellKeys(ctx context.Context) {
	if s.publish == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keyWait)
	defer cancel()
	s.publish(ctx)
}

func (s *Store) keyChanged(k *signer, what string) {
	s.cfg.Log.Info().Str("kid", k.key.ID()).Msg("signing key rotated")
	s.publishEvent(events.Event{Kind: events.KindLeaseKeyChanged, Code: "rotated", Text: "signing key " + k.key.ID() + " " + what})
}

func unexpired(keys []Key, now time.Time) []Key {
	return slices.DeleteFunc(slices.Clone(keys), func(k Key) bool { return k.NotAfter <= now.UnixMilli() })
}
