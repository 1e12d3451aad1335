package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// size is what of a program must not grow.
type size struct {
	goroutines, descriptors int
	rss                     int64 // bytes
}

// sizes are those of the edge and the nodes, by name.
type sizes map[string]size

// get asks an admin listener; no request of the soak itself waits for long.
func get(ctx context.Context, addr, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return "", err
	}
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s: %s", addr, path, resp.Status)
	}
	return string(b), err
}

func post(ctx context.Context, addr, path, body string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Close = true
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s%s: %s", addr, path, resp.Status)
	}
	return nil
}

// metric is the sum of a metric's samples.
func metric(text, name string) (sum float64) {
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); bare == name {
			n, _ := strconv.ParseFloat(value, 64) // metrics are numbers
			sum += n
		}
	}
	return sum
}

// nodeStatus is what a node's admin listener shows.
type nodeStatus struct {
	Goroutines int `json:"goroutines"`
	Lingering  int `json:"lingering"`
	Links      []struct {
		OpenStreams int `json:"open_streams"`
	} `json:"links"`
	Adapters []struct {
		InFlight int `json:"in_flight"`
	} `json:"adapters"`
	Running []json.RawMessage `json:"running"`
	Store   struct {
		State  string `json:"state"`
		Queued int    `json:"queued"`
		Lost   int    `json:"lost"`
	} `json:"store"`
}

func statusOf(ctx context.Context, node *machine) (s nodeStatus, err error) {
	p := node.process()
	found := p.Entries(node.ready)
	if len(found) == 0 {
		return s, fmt.Errorf("%s has no admin listener", node.name)
	}
	text, err := get(ctx, found[0].Str("address"), "/admin/v1/status")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// held says what a node still has, "" = nothing.
func (s nodeStatus) held() string {
	var in, streams int
	for _, a := range s.Adapters {
		in += a.InFlight
	}
	for _, l := range s.Links {
		streams += l.OpenStreams
	}
	if len(s.Running)+s.Lingering+in+streams+s.Store.Queued == 0 {
		return ""
	}
	return fmt.Sprintf("%d running, %d lingering, %d places, %d streams, %d rows unwritten", len(s.Running), s.Lingering, in, streams, s.Store.Queued)
}

// ready waits until all nodes take work and all adapters are there.
func (w *world) ready(ctx context.Context, within time.Duration) error {
	return await(ctx, within, "every node is ready", func() error {
		text, err := get(ctx, w.admin, "/admin/v1/nodes")
		if err != nil {
			return err
		}
		var answer struct {
			Nodes []struct {
				ID, State string
				Adapters  []struct {
					Name      string
					Available bool
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			return err
		}
		for _, n := range answer.Nodes {
			for _, a := range n.Adapters {
				if !a.Available {
					return fmt.Errorf("%s's %s isn't available", n.ID, a.Name)
				}
			}
			if n.State != "ready" {
				return fmt.Errorf("%s is %s", n.ID, n.State)
			}
		}
		return nil
	})
}

// held says what the edge, the nodes and the providers still have.
func (w *world) held(ctx context.Context) error {
	text, err := get(ctx, w.admin, "/metrics")
	if err != nil {
		return err
	}
	for _, name := range []string{"iop_places_in_flight", "iop_places_unconfirmed", "iop_places_adopted", "iop_queue_length", "iop_runs_live",
		"iop_open_streams", "iop_answers_unread", "iop_request_body_held_bytes"} {
		if n := metric(text, name); n != 0 {
			return fmt.Errorf("the edge's %s is %v", name, n)
		}
	}
	for _, node := range w.nodes {
		s, err := statusOf(ctx, node)
		if err != nil {
			return err
		}
		if held := s.held(); held != "" {
			return fmt.Errorf("%s still has %s", node.name, held)
		}
	}
	for _, p := range w.providers {
		active, err := get(ctx, p.process().Entries(p.ready)[0].Str("http"), "/soak/active")
		if err != nil || active != "0" {
			return fmt.Errorf("%s still executes %s (%v)", p.name, active, err)
		}
	}
	return nil
}

// rest waits until nothing is held anywhere and all is ready.
func (w *world) rest(ctx context.Context, within time.Duration) error {
	if err := w.ready(ctx, within); err != nil {
		return err
	}
	return await(ctx, within, "nothing is held", func() error { return w.held(ctx) })
}

// sizes measures edge and nodes, once they don't shrink any more.
func (w *world) sizes(ctx context.Context) (sizes, error) {
	var last sizes
	for {
		now := sizes{}
		for _, m := range append([]*machine{w.edge}, w.nodes...) {
			s, err := w.size(ctx, m)
			if err != nil {
				return nil, err
			}
			now[m.name] = s
		}
		shrunk := last == nil
		for name, s := range now {
			shrunk = shrunk || s.goroutines < last[name].goroutines || s.descriptors < last[name].descriptors
		}
		if !shrunk {
			return now, nil
		}
		last = now
		if err := pause(ctx, 3*time.Second); err != nil {
			return nil, err
		}
	}
}

func (w *world) size(ctx context.Context, m *machine) (s size, err error) {
	if m == w.edge {
		text, err := get(ctx, w.admin, "/metrics")
		if err != nil {
			return s, err
		}
		s.goroutines = int(metric(text, "go_goroutines"))
	} else {
		status, err := statusOf(ctx, m)
		if err != nil {
			return s, err
		}
		s.goroutines = status.Goroutines
	}
	if s.descriptors, err = m.process().Descriptors(); err != nil {
		return s, err
	}
	s.rss, err = rss(m.process().Pid())
	return s, err
}

// rss is a process's resident memory.
func rss(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// await polls until ok returns nil; its last error is what was in the way.
func await(ctx context.Context, within time.Duration, what string, ok func() error) error {
	for end := time.Now().Add(within); ; {
		err := ok()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %s: %w", within, what, err)
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
