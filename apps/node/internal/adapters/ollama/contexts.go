package ollama

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"iop/apps/node/internal/adapters/upstream"
)

const (
	// maxShows is how many models one probe asks about, and showsLimit how long that may take in all: a probe tells
	// first of all that the provider is there, and the next one goes on.
	maxShows   = 8
	showsLimit = time.Second
	// maxShow is the largest description of a model that is read. It has licenses and a list of all tensors in it.
	maxShow = 4 << 20
)

// contexts remembers how long the context of each model is, by the model's digest: a digest never means another model,
// so an answer holds for good.
type contexts struct {
	mu    sync.Mutex
	known map[string]int64 // 0 = the provider doesn't tell, or is being asked
	turn  int              // where in the list the next model is looked for, so that none that is slow holds up the others
}

// of returns a model's longest context in tokens, 0 if it isn't known.
func (c *contexts) of(digest string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[digest]
}

// note keeps what was told of a model.
func (c *contexts) note(digest string, length int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[digest] = length
}

// forget gives up a claim that got no answer.
func (c *contexts) forget(digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, digest)
}

// retain forgets the models that are gone.
func (c *contexts) retain(all []listed) {
	there := make(map[string]bool, len(all))
	for _, m := range all {
		there[m.Digest] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for digest := range c.known {
		if !there[digest] {
			delete(c.known, digest)
		}
	}
}

// next claims a model of the list that has to be asked about, nil if there is none. Those in memory tell unasked.
func (c *contexts) next(all []listed, loaded map[string]listed) *listed {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range all {
		m := &all[c.turn%len(all)]
		c.turn++
		if _, known := c.known[m.Digest]; known || m.Name == "" || m.Digest == "" || loaded[m.Name].Context > 0 {
			continue
		}
		if c.known == nil {
			c.known = map[string]int64{}
		}
		c.known[m.Digest] = 0
		return m
	}
	return nil
}

// learn asks about some of the models whose context isn't known yet.
func (p *Provider) learn(ctx context.Context, all []listed, loaded map[string]listed) {
	p.contexts.retain(all)
	ctx, cancel := context.WithTimeout(ctx, p.shows)
	defer cancel()
	for range maxShows {
		m := p.contexts.next(all, loaded)
		if m == nil {
			return
		}
		question, _ := json.Marshal(map[string]string{"model": m.Name}) // a text is always JSON
		answer, err := p.client.Ask(ctx, "/api/show", question, maxShow)
		if err != nil {
			p.contexts.forget(m.Digest) // it is asked about again after the others
			return
		}
		p.contexts.note(m.Digest, readContext(answer))
	}
}

// readContext reads the answer to POST /api/show: the model's own longest context, or less if its parameters say so.
func readContext(answer *upstream.Answer) int64 {
	var show struct {
		Parameters string                     `json:"parameters"`
		Info       map[string]json.RawMessage `json:"model_info"`
	}
	var family string
	var length int64
	if answer.Status != 200 || json.Unmarshal(answer.Body, &show) != nil ||
		json.Unmarshal(show.Info["general.architecture"], &family) != nil ||
		json.Unmarshal(show.Info[family+".context_length"], &length) != nil {
		return 0
	}
	for line := range strings.Lines(show.Parameters) {
		if words := strings.Fields(line); len(words) == 2 && words[0] == "num_ctx" {
			if n, err := strconv.ParseInt(words[1], 10, 64); err == nil && n > 0 {
				length = min(length, n)
			}
		}
	}
	return max(length, 0)
}
