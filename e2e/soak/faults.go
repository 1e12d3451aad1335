package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// fault is one kind of harm. It does it, waits, repairs it, and returns.
type fault struct {
	name   string
	weight int
	wears  bool // ends the edge, or node-0: not in the last third, so that they show what they lose with time
	do     func(ctx context.Context, w *world, r *rand.Rand) error
}

func faults() []fault {
	return []fault{
		{"link reset", 8, false, func(ctx context.Context, w *world, r *rand.Rand) error {
			w.links[r.IntN(nodeCount)].reset()
			return nil
		}},
		{"link blackholed both ways", 5, false, lost(true, true)},
		{"link blackholed towards the edge", 3, false, lost(true, false)},
		{"link blackholed towards the node", 3, false, lost(false, true)},
		{"reload with other capacities", 6, false, reload},
		{"drain and undo", 6, false, drain},
		{"edge SIGKILL", 2, true, again(syscall.SIGKILL, func(w *world, _ *rand.Rand) *machine { return w.edge })},
		{"edge SIGTERM", 2, true, again(syscall.SIGTERM, func(w *world, _ *rand.Rand) *machine { return w.edge })},
		{"edge SIGSTOP", 2, false, stop(func(w *world, _ *rand.Rand) *machine { return w.edge })},
		{"first node SIGKILL", 2, true, again(syscall.SIGKILL, func(w *world, _ *rand.Rand) *machine { return w.nodes[0] })},
		{"node SIGKILL", 5, false, again(syscall.SIGKILL, anyNode)},
		{"node SIGTERM", 4, false, again(syscall.SIGTERM, anyNode)},
		{"node SIGSTOP", 5, false, stop(func(w *world, r *rand.Rand) *machine { return w.nodes[r.IntN(nodeCount)] })},
		{"provider SIGKILL", 4, false, again(syscall.SIGKILL, anyProvider)},
		{"provider SIGSTOP", 5, false, stop(anyProvider)},
	}
}

// chosen are the faults whose name matches.
func chosen(only string) []fault {
	wanted := regexp.MustCompile(only)
	return slices.DeleteFunc(faults(), func(f fault) bool { return !wanted.MatchString(f.name) })
}

// anyNode is any but the first.
func anyNode(w *world, r *rand.Rand) *machine { return w.nodes[1+r.IntN(nodeCount-1)] }

func anyProvider(w *world, r *rand.Rand) *machine { return w.providers[r.IntN(len(w.providers))] }

// breakThings draws faults until ctx ends. They may overlap, but not on one machine.
func (w *world) breakThings(ctx context.Context, b *book, o options, length time.Duration) {
	r := rand.New(rand.NewPCG(o.seed, 1<<63))
	list, total := chosen(o.only), 0
	for _, f := range list {
		total += f.weight
	}
	if total == 0 {
		return
	}
	begun := time.Now()
	var going sync.WaitGroup
	defer going.Wait()
	for pause(ctx, time.Duration((0.2+1.6*r.Float64())*float64(o.calm))) == nil {
		f, n := list[0], r.IntN(total)
		for _, f = range list {
			if n -= f.weight; n < 0 {
				break
			}
		}
		own := rand.New(rand.NewPCG(r.Uint64(), 7))
		if f.wears && time.Since(begun) > length*2/3 {
			continue
		}
		b.struck(f.name)
		going.Go(func() {
			// A repair that has begun is finished, also when the load is over.
			if err := f.do(context.WithoutCancel(ctx), w, own); err != nil {
				b.broken(fmt.Sprintf("%s couldn't be repaired: %v", f.name, err))
			}
		})
	}
}

// lost makes a link silent for a while: shorter than the dead limit, or longer.
func lost(toEdge, toNode bool) func(context.Context, *world, *rand.Rand) error {
	return func(ctx context.Context, w *world, r *rand.Rand) error {
		link := w.links[r.IntN(nodeCount)]
		link.lose(toEdge, toNode)
		defer link.lose(false, false)
		return pause(ctx, time.Duration(500+r.IntN(9000))*time.Millisecond)
	}
}

// again ends a machine with a signal and starts it again after a moment.
func again(signal syscall.Signal, of func(*world, *rand.Rand) *machine) func(context.Context, *world, *rand.Rand) error {
	return func(ctx context.Context, w *world, r *rand.Rand) error {
		m := of(w, r)
		m.held.Lock()
		defer m.held.Unlock()
		p := m.process()
		if err := p.Signal(signal); err != nil {
			return fmt.Errorf("%s isn't there: %w\n%s", m.name, err, lastLines(p.Log()))
		}
		select {
		case <-p.Done():
		case <-time.After(20 * time.Second): // its grace is 5 s
			p.Kill()
			return fmt.Errorf("%s didn't end within 20s of %v\n%s", m.name, signal, lastLines(p.Log()))
		}
		if err := pause(ctx, time.Duration(r.IntN(3000))*time.Millisecond); err != nil {
			return err
		}
		_, err := m.start(ctx)
		return err
	}
}

// stop stops a machine for less or more than the dead limit.
func stop(of func(*world, *rand.Rand) *machine) func(context.Context, *world, *rand.Rand) error {
	return func(ctx context.Context, w *world, r *rand.Rand) error {
		m := of(w, r)
		m.held.Lock()
		defer m.held.Unlock()
		p := m.process()
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			return fmt.Errorf("%s isn't there: %w\n%s", m.name, err, lastLines(p.Log()))
		}
		err := pause(ctx, time.Duration(200+r.IntN(8000))*time.Millisecond)
		if cont := p.Signal(syscall.SIGCONT); cont != nil {
			return cont
		}
		return err
	}
}

// reload changes how many places there are; the edge sees its file change.
func reload(_ context.Context, w *world, r *rand.Rand) error {
	w.edge.held.Lock()
	defer w.edge.held.Unlock()
	return w.configure(2 + r.IntN(5))
}

// drain keeps new work from a node for a while. An edge that is away, or was started again, doesn't know of it.
func drain(ctx context.Context, w *world, r *rand.Rand) error {
	path := fmt.Sprintf("/admin/v1/nodes/node-%d/drain", r.IntN(nodeCount))
	_ = post(ctx, w.admin, path, "{}")
	if err := pause(ctx, time.Duration(500+r.IntN(5000))*time.Millisecond); err != nil {
		return err
	}
	return await(ctx, time.Minute, "the drain is undone", func() error { return post(ctx, w.admin, path, `{"undo":true}`) })
}

// lastLines is the end of a log.
func lastLines(log string) string {
	lines := strings.Split(log, "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
