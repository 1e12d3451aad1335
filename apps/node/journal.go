package node

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/store"
	"iop/packages/go/config"
)

// openLimit bounds the checks of the journal at the start.
const openLimit = time.Minute

// journal is the node's record and who is told how it is.
type journal struct {
	rows *store.Journal // nil: nothing is recorded

	mu        sync.Mutex
	executors []*node.Executor
	aside     []string // what was set aside before anybody could be told
	policies  map[string]retention
}

// retention is what an Edge wants kept; 0 says nothing.
type retention struct {
	maxAge  time.Duration
	maxRows int
}

// openJournal opens the journal in the data directory. Without a directory nothing is recorded, which no
// configuration file can ask for. An error names the file.
func openJournal(cfg *config.Node, opts Options) (*journal, error) {
	j := &journal{policies: map[string]retention{}}
	if cfg.DataDir == "" {
		return j, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	defer cancel()
	rows, err := store.Open(ctx, store.Config{Dir: cfg.DataDir, Log: opts.Log, OnState: j.changed, OnSetAside: j.setAside})
	if err != nil {
		return nil, err
	}
	j.rows = rows
	return j, nil
}

// tell names those who are to be told how the store is, and what happened to it before there were any.
func (j *journal) tell(executors []*node.Executor) {
	j.mu.Lock()
	j.executors = executors
	aside := j.aside
	j.aside = nil
	j.mu.Unlock()
	for _, path := range aside {
		j.setAside(path)
	}
}

func (j *journal) listeners() []*node.Executor {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.executors
}

func (j *journal) changed(degraded bool, reason string) {
	for _, x := range j.listeners() {
		x.StoreChanged(degraded, reason)
	}
}

func (j *journal) setAside(path string) {
	j.mu.Lock()
	executors := j.executors
	if executors == nil {
		j.aside = append(j.aside, path)
	}
	j.mu.Unlock()
	for _, x := range executors {
		x.StoreSetAside(fmt.Sprintf("the journal was damaged; it was set aside as %s, and a fresh one begun", filepath.Base(path)))
	}
}

// retain takes what an Edge's projection says of the journal.
func (j *journal) retain(edge string, maxAge time.Duration, maxRows int) {
	keep := j.widest(edge, retention{maxAge, maxRows})
	j.rows.Retain(keep.maxAge, keep.maxRows)
}

// widest notes what an Edge wants. One journal serves all Edges, so what the most patient of them wants is kept.
func (j *journal) widest(edge string, p retention) (keep retention) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.policies[edge] = p
	for _, p := range j.policies {
		keep.maxAge, keep.maxRows = max(keep.maxAge, p.maxAge), max(keep.maxRows, p.maxRows)
	}
	return keep
}

// run writes what is recorded, until close.
func (j *journal) run() {
	if j.rows == nil {
		return
	}
	go func() { _ = j.rows.Run(context.Background()) }() // ends with close; its error is a second call
}

// close writes what is left. A disk that doesn't answer is left behind after a while.
func (j *journal) close() error { return j.rows.Close() }

// health returns what shows how the journal is, nil without one.
func (j *journal) health() func() store.Health {
	if j.rows == nil {
		return nil
	}
	return j.rows.Health
}
