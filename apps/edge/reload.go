package edge

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/credential"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/transport"
	"iop/packages/go/config"
	"iop/packages/go/program"
)

// live is the configuration in force. It is replaced as a whole, after everything about its successor was checked.
type live struct {
	log         zerolog.Logger
	state       atomic.Pointer[config.State]
	generations *node.Generations
	registry    *node.Registry
	leases      *credential.Store             // nil = mode dev
	tell        func()                        // brings what is connected in line with the state in force
	identity    chan struct{}                 // has the files of the identity read again; capacity 1
	told        func(changed bool, err error) // of each try, after it
	waiting     func()                        // has those who wait look again
	bound       config.Listen                 // what listen became; set before follow
	mu          sync.Mutex                    // of reload
}

// bind notes where the edge listens, so that a file which names the port that it got for a 0 says the same.
func (l *live) bind(a Addrs) {
	l.bound = l.current().Edge.Listen
	l.bound.Nodes, l.bound.HTTP = a.Nodes.String(), a.HTTP.String()
	if a.Admin != nil {
		l.bound.Admin = a.Admin.String()
	}
}

// current is what every part of the program asks: one load of a pointer.
func (l *live) current() *config.State { return l.state.Load() }

// files are what a change of the configuration is seen by.
func (l *live) files() []string { return l.current().Edge.Files }

// fileChanged is why a reload that nobody asked for happens.
const fileChanged = "a file changed"

// follow reloads the configuration when its files change or somebody asks, until ctx ends.
func (l *live) follow(ctx context.Context, asked <-chan struct{}) {
	done := make(chan struct{})
	defer func() { <-done }()
	go func() { // ends with ctx
		defer close(done)
		program.Watch(ctx, l.files, func() { l.reload(fileChanged) })
	}()
	for {
		select {
		case <-asked:
			l.reload("SIGHUP")
			select {
			case l.identity <- struct{}{}:
			default:
			}
		case <-ctx.Done():
			return
		}
	}
}

// reload reads the file again. Whatever is wrong with it changes nothing, and is said once for each try.
func (l *live) reload(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.current()
	next, err := config.ReloadEdge(old.Edge.Path)
	var state *config.State
	if err == nil {
		state, err = l.check(old, next)
	}
	switch {
	case err != nil:
		l.log.Error().Err(err).Str("why", why).Uint64("version", old.Version).Msg("configuration not reloaded: everything stays as it was")
	case state == nil && why == fileChanged: // also once at the start
		l.log.Debug().Uint64("version", old.Version).Msg("configuration looked at: nothing has changed")
	case state == nil:
		l.log.Info().Str("why", why).Uint64("version", old.Version).Msg("configuration reloaded: nothing has changed")
	default:
		l.install(state)
		l.log.Info().Str("why", why).Uint64("version", state.Version).Strs("changed", old.Edge.Differs(next)).Msg("configuration reloaded")
	}
	l.told(state != nil && err == nil, err)
}

// install puts a state in force. Whoever asks from here on gets the new one, and what is connected is brought in line after.
func (l *live) install(state *config.State) {
	l.state.Store(state)
	if l.leases != nil {
		l.leases.Reconfigured()
	}
	l.tell()
	l.waiting()
}

// check makes the state that would follow old, nil when next says the same.
func (l *live) check(old *config.State, next *config.Edge) (*config.State, error) {
	was := *old.Edge
	if reflect.DeepEqual(next.Listen, l.bound) {
		was.Listen = l.bound
	}
	if keys := was.NeedsRestart(next); len(keys) > 0 {
		return nil, fmt.Errorf("%s: %s changed, which takes a restart; undo that, or restart", next.Path, strings.Join(keys, ", "))
	}
	if len(old.Edge.Differs(next)) == 0 {
		return nil, nil
	}
	version, err := l.generations.Next()
	if err != nil {
		return nil, err
	}
	state := config.NewState(next, version, old)
	for i := range next.Nodes {
		if _, err := transport.Payload(state.Projection(next.Nodes[i].ID)); err != nil {
			return nil, fmt.Errorf("%s: node %s: %w", next.Path, next.Nodes[i].ID, err)
		}
	}
	if l.leases != nil {
		if err := l.leases.Check(state); err != nil {
			return nil, fmt.Errorf("%s: %w", next.Path, err)
		}
	}
	return state, nil
}
