package httpapi

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"iop/apps/edge/internal/dialect/ollama"
	"iop/apps/edge/internal/service"
)

// Commands asks nodes; *service.Service does.
type Commands interface {
	// Command returns what a node answered, or why it didn't.
	Command(ctx context.Context, c *service.Command) *service.CommandResult
}

const (
	listFor   = 5 * time.Second // lists.keep
	listLimit = 2 * time.Second // how long an Ollama may take to tell one
	listers   = 16              // how many are asked at once for one caller
	mostLists = 4096            // that are remembered
)

// lists asks Ollamas what they have, through their nodes, and remembers the answers for a moment: clients that show a
// list ask for it again and again, and each of them must not cost a question to each node.
type lists struct {
	commands Commands      // nil = nobody is asked
	keep     time.Duration // how long a list is used again

	mu    sync.Mutex
	known map[listKey]*list
}

type listKey struct {
	adapterKey
	path string // of /api/tags or /api/ps
}

// list is one answer. Its fields are written before done is closed, and not changed afterwards.
type list struct {
	done    chan struct{}
	at      time.Time
	entries map[string]json.RawMessage // by the Ollama's names; nil when it didn't answer
}

// all returns what the Ollamas of these adapters say. Who doesn't answer in time has said nothing.
func (l *lists) all(ctx context.Context, path string, keys []adapterKey) map[adapterKey]map[string]json.RawMessage {
	answers := make([]map[string]json.RawMessage, len(keys))
	var asking sync.WaitGroup
	turn := make(chan struct{}, listers)
	for i, key := range keys {
		turn <- struct{}{}
		asking.Go(func() { // ends with the answer, which is bounded
			defer func() { <-turn }()
			answers[i] = l.one(ctx, listKey{key, path})
		})
	}
	asking.Wait()
	out := make(map[adapterKey]map[string]json.RawMessage, len(keys))
	for i, key := range keys {
		out[key] = answers[i]
	}
	return out
}

// one returns one list, of which only one is fetched at a time.
func (l *lists) one(ctx context.Context, key listKey) map[string]json.RawMessage {
	l.mu.Lock()
	have := l.known[key]
	if have == nil || have.over(l.keep) {
		if len(l.known) >= mostLists {
			clear(l.known)
		}
		have = &list{done: make(chan struct{})}
		l.known[key] = have
		l.mu.Unlock()
		return l.fetch(ctx, key, have)
	}
	l.mu.Unlock()
	select {
	case <-have.done:
		return have.entries
	case <-ctx.Done():
		return nil
	}
}

// fetch fills in an answer. A caller that leaves doesn't take it from others who wait for it.
func (l *lists) fetch(ctx context.Context, key listKey, have *list) map[string]json.RawMessage {
	defer close(have.done)
	have.entries = l.ask(context.WithoutCancel(ctx), key)
	have.at = time.Now()
	return have.entries
}

// over reports whether a list is older than that.
func (l *list) over(keep time.Duration) bool {
	select {
	case <-l.done:
		return time.Since(l.at) >= keep
	default:
		return false
	}
}

func (l *lists) ask(ctx context.Context, key listKey) map[string]json.RawMessage {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	r := l.commands.Command(ctx, &service.Command{Type: service.CommandOllamaAPI, NodeID: key.node, Adapter: key.adapter,
		Method: "GET", Path: key.path})
	if !r.OK() || r.Status != 200 {
		return nil
	}
	return ollama.Entries(r.Body)
}
