package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/apps/edge/internal/events"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
)

// heardOf collects what was published of a run, as "kind node attempt code".
func heardOf(bus *events.Bus, run string) (lines []string) {
	zero := uint64(0)
	sub, before, _ := bus.Follow(events.Query{After: &zero, Match: func(e *events.Event) bool { return e.RunID == run }})
	sub.Close()
	for _, e := range before {
		lines = append(lines, fmt.Sprint(e.Kind, " ", e.NodeID, " ", e.Attempt, " ", e.Code))
	}
	return lines
}

// explained are the steps that are remembered of a run, in the same form.
func (r *rig) explained(run string) (lines []string) {
	r.Helper()
	x, found := r.svc.Explain(run)
	if !found {
		r.Fatalf("%s isn't known", run)
	}
	for i, s := range x.Timeline {
		if s.At.Before(x.CreatedAt) || i > 0 && s.At.Before(x.Timeline[i-1].At) || s.AfterMS != s.At.Sub(x.CreatedAt).Milliseconds() {
			r.Errorf("step %d of %s goes back in time: %+v", i, run, x.Timeline)
		}
		lines = append(lines, fmt.Sprint(s.Event, " ", s.Node, " ", s.Attempt, " ", s.Code))
	}
	return lines
}

// wantSteps compares what was published and what is remembered of a run.
func (r *rig) wantSteps(bus *events.Bus, run string, want ...string) {
	r.Helper()
	if got := heardOf(bus, run); !slices.Equal(got, want) {
		r.Errorf("published of %s:\n%s\nwant\n%s", run, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := r.explained(run); !slices.Equal(got, want) {
		r.Errorf("remembered of %s:\n%s\nwant\n%s", run, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestStepsOfATunnel(t *testing.T) {
	bus := events.NewBus()
	r := newRig(t, setup{service: Config{Events: bus}, work: func(w *work) { w.answer("hello") }})
	if o, _ := r.run(r.tunnel("run-1", "body")); !o.OK() {
		t.Fatal(o.Failure)
	}
	r.wantSteps(bus, "run-1", "run_submitted  0 ", "run_placed a 1 ", "run_accepted a 1 ", "run_first_byte a 1 ", "run_ended a 1 ok")
	if got := r.svc.Frames(); got["accepted"] != 1 || got["head"] != 1 || got["body"] != 1 || got["end"] != 1 || len(got) != 4 {
		t.Errorf("frames %v", got)
	}
	x, _ := r.svc.Explain("run-1")
	if x.RunID != "run-1" || x.Code != "ok" || x.Timeline[4].Skipped != 0 || x.Timeline[1].Generation != 1 || x.Timeline[1].Adapter != "p" {
		t.Errorf("%+v", x)
	}
	if _, found := r.svc.Explain("nobody"); found {
		t.Error("a run that never was is explained")
	}
	r.idle()
}

// Who waits, is refused by one node and served by another can see each of these.
func TestStepsOfARunThatWaitsAndTriesAgain(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		bus := events.NewBus()
		release := make(chan struct{})
		r := newRig(t, setup{capacity: 1, service: Config{Events: bus}, work: func(w *work) {
			if w.runID == "holder" {
				w.accept()
				<-release
			}
			if w.runID == "run-1" && w.attempt == 1 {
				w.reject(execution.CodeAdapterBusy, true)
				return
			}
			if w.runID != "holder" {
				w.accept()
			}
			w.head(200)
			w.end(0)
		}})
		holder := r.submit(r.tunnel("holder", ""), &recorder{})
		untilSent(r, holder)
		p := r.submit(r.tunnel("run-1", ""), &recorder{})
		untilQueued(r, 1)
		r.poll("the queued event", func() bool { return len(heardOf(bus, "run-1")) == 2 })
		if x, _ := r.svc.Explain("run-1"); !x.Live || len(x.Timeline) != 2 || x.Timeline[1].Position != 1 {
			t.Errorf("while it waits: %+v", x)
		}
		close(release)
		if o := r.outcome(holder); !o.OK() {
			t.Error(o.Failure)
		}
		if o := r.outcome(p); !o.OK() || o.Attempts != 2 {
			t.Errorf("%+v", o)
		}
		want := []string{"run_submitted  0 ", "run_queued  1 ", "run_placed a 1 ", "run_retried a 1 adapter_busy", "run_queued  2 ",
			"run_placed a 2 ", "run_accepted a 2 ", "run_first_byte a 2 ", "run_ended a 2 ok"}
		r.wantSteps(bus, "run-1", want...)
		r.idle()
	})
}

func TestStepsOfARunThatIsRefused(t *testing.T) {
	bus := events.NewBus()
	r := newRig(t, setup{service: Config{Events: bus}, work: says})
	h := r.start(r.spec("run-1"), &listener{})
	heardSomething(r, h)
	published := bus.Stats().Published
	if o, _ := r.run(r.tunnel("run-1", "")); code(o) != execution.CodeDuplicateRun {
		t.Errorf("%v", o.Failure)
	}
	if got := bus.Stats().Published; got != published {
		t.Error("a run that never lived was published under the name of one that does")
	}
	r.svc.Cancel("run-1", execution.CauseAPI)
	r.result(h)
	r.wantSteps(bus, "run-1", "run_submitted  0 ", "run_placed a 1 ", "run_accepted a 1 ", "run_first_byte a 1 ", "run_ended a 1 cancelled")
	r.idle()
}

// A background run loses its node, is adopted, loses it again, and ends by its node's word.
func TestStepsOfABackgroundRun(t *testing.T) {
	bus := events.NewBus()
	r, h := away(t, Config{Events: bus})
	r.join("a", 2, 4, says, running("run-1", 1))
	r.untilState("run-1", StateRunning)
	r.node("a", 2).edge.Close(transport.ReasonLost)
	r.untilState("run-1", StateDetached)
	r.sched.Fence("a", 2)
	n := r.join("a", 3, 4, says, running("run-1", 1))
	r.untilState("run-1", StateRunning)
	r.poll("the adoption", func() bool {
		return strings.HasPrefix(heardOf(bus, "run-1")[len(heardOf(bus, "run-1"))-1], "run_adopted")
	})
	n.far.SendRunEnded(end("run-1", 1, statusComplete, 0))
	if o := r.result(h); !o.OK() {
		t.Fatal(o.Failure)
	}
	r.wantSteps(bus, "run-1", "run_submitted  0 ", "run_placed a 1 ", "run_accepted a 1 ", "run_first_byte a 1 ", "run_detached a 1 ",
		"run_adopted a 1 ", "run_detached a 1 ", "run_adopted a 1 ", "run_ended a 1 ok")
	x, _ := r.svc.Explain("run-1")
	if x.Timeline[5].Generation != 2 || x.Timeline[7].Generation != 3 {
		t.Errorf("%+v", x.Timeline)
	}
	r.idle()
}

// What an earlier process of the edge has started is told of when its node tells.
func TestStepsOfRunsOfAnEarlierEdge(t *testing.T) {
	bus := events.NewBus()
	r := newRig(t, setup{manual: true, service: Config{Events: bus}})
	n := r.join("a", 1, 4, says, running("old", 3))
	r.untilState("old", StateRecovered)
	r.poll("the adoption", func() bool { return len(heardOf(bus, "old")) == 2 })
	n.far.SendRunEnded(end("older", 1, statusError, execution.CodeUpstreamError))
	n.far.SendRunEnded(end("old", 3, statusComplete, 0))
	r.outcomeOf("old")
	r.wantSteps(bus, "old", "run_recovered a 3 ", "run_adopted a 3 ", "run_ended a 0 ok")
	r.poll("the older one", func() bool { return slices.Equal(heardOf(bus, "older"), []string{"run_recovered a 1 upstream_error"}) })
	r.idle()
}

// EV-02: subscribers that take nothing cost callers nothing: every run has its outcome, and what was lost is counted.
func TestOutcomesDontTravelOnTheBus(t *testing.T) {
	bus := events.NewBus()
	r := newRig(t, setup{capacity: 8, service: Config{Events: bus}, work: func(w *work) { w.answer("hello") }})
	deaf := bus.Subscribe(1)
	const runs = 200
	var all sync.WaitGroup
	for caller := range 4 {
		all.Go(func() {
			for i := range runs / 4 {
				if o, c := r.run(r.tunnel(fmt.Sprintf("run-%d-%d", caller, i), "x")); !o.OK() || c.text() != "hello" || c.ends != 1 {
					t.Errorf("%+v", o)
				}
			}
		})
	}
	all.Wait()
	received := 0
	for open := true; open; {
		select {
		case <-deaf.C:
			received++
		default:
			open = false
		}
	}
	if got := bus.Stats(); got.Published < 5*runs || uint64(received)+deaf.Dropped() != got.Published || got.Dropped != deaf.Dropped() {
		t.Errorf("received %d, dropped %d, %+v", received, deaf.Dropped(), got)
	}
	r.idle()
}

// Nothing that goes in or comes out of a tunnel gets into an event or a timeline: neither bodies nor headers, neither
// what a provider says when it fails.
func TestBodiesDontTravelOnTheBus(t *testing.T) {
	const secret = "S3CR3T"
	bus := events.NewBus()
	r := newRig(t, setup{service: Config{Events: bus}, work: func(w *work) {
		w.accept()
		w.head(200)
		w.body(secret)
		w.fail(execution.CodeUpstreamError, false)
	}})
	tunnel := r.tunnel("run-1", `{"model":"m","messages":"`+secret+`"}`)
	tunnel.Header, tunnel.Query = http.Header{"Authorization": {"Bearer " + secret}, "X-Custom": {secret}}, "key="+secret
	if o, c := r.run(tunnel); o.OK() || c.text() != secret {
		t.Fatalf("%+v %q", o, c.text())
	}
	zero := uint64(0)
	_, all, _ := bus.Follow(events.Query{After: &zero})
	for _, e := range all {
		if e.Text != "" { // a provider may have written it
			t.Errorf("%v says %q", e.Kind, e.Text)
		}
	}
	x, _ := r.svc.Explain("run-1")
	text, err := json.Marshal(map[string]any{"events": all, "explained": x.Timeline})
	if err != nil || len(all) != 5 || strings.Contains(string(text), secret) {
		t.Errorf("%v %s", err, text)
	}
	r.idle()
}

// EV-02: a run that is tried again and again doesn't fill the memory: its first steps and its last ones stay.
func TestTimelineIsBounded(t *testing.T) {
	var line timeline
	const steps = 1000
	for i := range steps {
		line.add(step{kind: events.KindRunRetried, attempt: uint32(i)})
	}
	got, leftOut := line.load(true)
	if len(got) != mostSteps || leftOut != steps-mostSteps || cap(line.steps) > 2*mostSteps {
		t.Fatalf("%d steps (room for %d), %d left out", len(got), cap(line.steps), leftOut)
	}
	for i, s := range got {
		want := i
		if i >= keptFirst {
			want = steps - mostSteps + i
		}
		if int(s.attempt) != want {
			t.Errorf("step %d is number %d, want %d", i, s.attempt, want)
		}
	}
	s := &Service{runs: newTable(1)}
	s.runs.rememberLocked(entry{RunView: RunView{RunID: "r"}, steps: line.steps, leftOut: line.leftOut})
	x, found := s.Explain("r")
	for i := range x.Timeline {
		if want := map[bool]int{true: steps - mostSteps}[i == keptFirst]; x.Timeline[i].Skipped != want {
			t.Errorf("step %d comes after %d that aren't remembered, want %d", i, x.Timeline[i].Skipped, want)
		}
	}
	if !found || len(x.Timeline) != mostSteps {
		t.Errorf("%+v", x)
	}
}

// What a run's steps cost that nobody follows: five of them, with the memory that stays in the table.
func BenchmarkSteps(b *testing.B) {
	bus := events.NewBus()
	s := &Service{cfg: Config{Events: bus}}
	b.ReportAllocs()
	for b.Loop() {
		r := &Run{service: s, id: "run-0123456789", started: time.Now(), out: Outcome{Model: "m", Principal: "alice", NodeID: "a", Adapter: "p"}}
		for _, k := range []events.Kind{events.KindRunSubmitted, events.KindRunPlaced, events.KindRunAccepted, events.KindRunFirstByte, events.KindRunEnded} {
			r.step(r.here(k))
		}
	}
}
