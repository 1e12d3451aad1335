package identity

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Config is what a Source needs.
type Config struct {
	// Files are where the identity is kept.
	Files Files
	// TrustDomain is the trust domain of the program and of all its peers.
	TrustDomain string
}

// Source is an identity whose files change under it. Its methods may be called concurrently.
type Source struct {
	cfg     Config
	current atomic.Pointer[Material]

	mu      sync.Mutex // of Reload
	changed chan struct{}
}

// Open reads the files. An error is a [*FileError].
func Open(cfg Config) (*Source, error) {
	s := &Source{cfg: cfg, changed: make(chan struct{})}
	m, err := s.load()
	if err != nil {
		return nil, err
	}
	s.current.Store(m)
	return s, nil
}

func (s *Source) load() (*Material, error) {
	m, err := Load(s.cfg.Files, time.Now())
	if err != nil {
		return nil, err
	}
	if m.ID().TrustDomain() != s.cfg.TrustDomain {
		return nil, &FileError{Key: "cert", Path: s.cfg.Files.Cert,
			Text: fmt.Sprintf("is of %s, which isn't in the trust domain %s", m.ID(), s.cfg.TrustDomain)}
	}
	return m, nil
}

// Current returns what is in force.
func (s *Source) Current() *Material { return s.current.Load() }

// TrustDomain is the trust domain of the program and of all its peers.
func (s *Source) TrustDomain() string { return s.cfg.TrustDomain }

// Files are the names of the files, for whoever watches them.
func (s *Source) Files() []string { return []string{s.cfg.Files.Cert, s.cfg.Files.Key, s.cfg.Files.CA} }

// Reload reads the files again. What doesn't fit together or isn't valid changes nothing and is an error: files that are
// replaced one after the other are no pair in between. It reports whether something else is in force now.
func (s *Source) Reload() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.load()
	if err != nil {
		return false, err
	}
	if m.equal(s.current.Load()) {
		return false, nil
	}
	s.current.Store(m)
	close(s.changed)
	s.changed = make(chan struct{})
	return true, nil
}

// Changed returns a channel that is closed when something else comes into force. Take it before [Source.Current], so
// that no change goes by.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
