package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/apps/edge/internal/events"
	"iop/packages/go/execution"
)

const (
	// maxFollowers bounds how many may follow events at once: each may lag behind by as much as followBuffer events.
	maxFollowers = 16
	followBuffer = 1024
	// followBeat is the pause between two comments, so that a dead connection and a silent edge can be told apart.
	followBeat = 15 * time.Second
	// followWrite bounds one write: whoever takes nothing for as long is gone.
	followWrite = 30 * time.Second
	// maxFilter bounds the values of one filter.
	maxFilter = 64
	// maxLast bounds how much of what was before may be asked for.
	maxLast = 5000
)

// eventView is an event as it is shown; the names are settled.
type eventView struct {
	ID         string    `json:"id"`
	At         time.Time `json:"at"`
	Kind       string    `json:"kind"`
	Node       string    `json:"node,omitempty"`
	Generation uint64    `json:"connection_generation,omitempty"`
	Adapter    string    `json:"adapter,omitempty"`
	RunID      string    `json:"run_id,omitempty"`
	Attempt    uint32    `json:"attempt,omitempty"`
	Principal  string    `json:"principal,omitempty"`
	Model      string    `json:"model,omitempty"`
	Position   int       `json:"position,omitempty"` // in the queue
	AfterMS    *int64    `json:"after_ms,omitempty"` // since the run's submission
	Code       string    `json:"code,omitempty"`
	Text       string    `json:"text,omitempty"`
}

// missedView says how many events a follower doesn't get.
type missedView struct {
	Kind   string  `json:"kind"`   // missed
	Missed *uint64 `json:"missed"` // null = nobody knows
	Why    string  `json:"why"`    // slow: it didn't read fast enough; forgotten: too long ago; restarted: of another process
}

// filter is what a follower wants.
type filter struct {
	some                   bool // only these kinds
	kinds                  map[events.Kind]bool
	allRuns, allOthers     bool
	nodes, runs, principal []string // empty = all
}

// match reports whether the follower wants e. The bus calls it under its lock.
func (f *filter) match(e *events.Event) bool {
	return f.wants(e.Kind) &&
		(len(f.nodes) == 0 || slices.Contains(f.nodes, e.NodeID)) &&
		(len(f.runs) == 0 || slices.Contains(f.runs, e.RunID)) &&
		(len(f.principal) == 0 || slices.Contains(f.principal, e.Principal))
}

func (f *filter) wants(k events.Kind) bool {
	return !f.some || f.kinds[k] || f.allRuns && k.Run() || f.allOthers && !k.Run()
}

// without says which of the two classes of events can't match at all, so that the follower hasn't missed any of them.
func (f *filter) without() (noRuns, noOthers bool) {
	noRuns, noOthers = f.some && !f.allRuns, f.some && !f.allOthers
	for k := range f.kinds {
		noRuns, noOthers = noRuns && !k.Run(), noOthers && k.Run()
	}
	return noRuns, noOthers || len(f.principal) > 0
}

// parseFollow reads the query of a request for events, and what the follower had before.
func (h *handler) parseFollow(r *http.Request) (q events.Query, restarted bool, refused *refusal) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, false, badQuery("the query isn't well-formed")
	}
	f := &filter{}
	for name, list := range values {
		list = strings.Split(strings.Join(list, ","), ",")
		switch {
		case len(list) > maxFilter:
			return q, false, badQuery(fmt.Sprintf("a filter may have %d values", maxFilter))
		case name == "kind":
			refused = f.addKinds(list)
		case name == "node":
			f.nodes = list
		case name == "run":
			f.runs = list
		case name == "principal":
			f.principal = list
		case name == "last":
			q.Last, refused = parseLast(name, list)
		case name == "last_each":
			q.LastEach, refused = parseLast(name, list)
		default:
			refused = badQuery("the query may have kind, node, run, principal, last and last_each")
		}
		if refused != nil {
			return q, false, refused
		}
	}
	q.Buffer, q.Match = followBuffer, f.match
	q.NoRuns, q.NoOthers = f.without()
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		id, known := h.parseID(last)
		q.After, restarted = &id, !known
	}
	return q, restarted, nil
}

// parseLast reads how much of what was before is asked for.
func parseLast(name string, list []string) (int, *refusal) {
	n, err := strconv.Atoi(list[0])
	if err != nil || n < 0 || n > maxLast || len(list) > 1 {
		return 0, badQuery(fmt.Sprintf("%s must be a number up to %d", name, maxLast))
	}
	return n, nil
}

func badQuery(text string) *refusal {
	return &refusal{status: http.StatusBadRequest, code: execution.CodeBadRequest, text: text}
}

// addKinds takes names of kinds, and the words that stand for many.
func (f *filter) addKinds(names []string) *refusal {
	f.some, f.kinds = true, map[events.Kind]bool{}
	for _, name := range names {
		k, known := events.ParseKind(name)
		switch {
		case known:
			f.kinds[k] = true
		case name == "run":
			f.allRuns = true
		case name == "node":
			f.allOthers = true
		default:
			return badQuery("an unknown kind: it is run, node, or the name of an event")
		}
	}
	return nil
}

// showID names an event so that another process of the edge doesn't take it for one of its own.
func (h *handler) showID(id uint64) string { return h.epoch + "-" + strconv.FormatUint(id, 10) }

func (h *handler) parseID(s string) (id uint64, known bool) {
	number, ours := strings.CutPrefix(s, h.epoch+"-")
	id, err := strconv.ParseUint(number, 10, 64)
	if !ours || err != nil {
		return 0, false
	}
	return id, true
}

// events answers GET /admin/v1/events: what happens, as server-sent events, until the caller leaves.
func (h *handler) events(w http.ResponseWriter, r *http.Request) {
	q, restarted, refused := h.parseFollow(r)
	if refused == nil && h.followers.Add(1) > maxFollowers {
		h.followers.Add(-1)
		refused = &refusal{status: http.StatusServiceUnavailable, code: execution.CodeOverloaded,
			text: fmt.Sprintf("%d follow events already", maxFollowers)}
	}
	if refused != nil {
		h.refuse(w, r, refused)
		return
	}
	defer h.followers.Add(-1)
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no")
	if r.Method == http.MethodHead {
		return
	}
	sub, before, missed := h.cfg.Events.Follow(q)
	defer sub.Close()
	s := &eventStream{h: h, w: w, rc: http.NewResponseController(w)}
	err := s.begin(before, missed, restarted)
	if err == nil {
		err = s.follow(r.Context(), sub)
	}
	h.cfg.Log.Info().Str("remote", r.RemoteAddr).Uint64("sent", s.sent).Uint64("dropped", sub.Dropped()).AnErr("cause", err).
		Msg("admin has followed events")
}

// eventStream writes events to one follower.
type eventStream struct {
	h    *handler
	w    http.ResponseWriter
	rc   *http.ResponseController
	sent uint64
}

// begin writes what was before. The first bytes tell the follower that it is connected.
func (s *eventStream) begin(before []events.Event, missed uint64, restarted bool) error {
	s.arm()
	_, err := io.WriteString(s.w, "retry: 1000\n\n")
	switch {
	case err != nil:
	case restarted:
		err = s.missed(nil, "restarted")
	case missed > 0:
		err = s.missed(&missed, "forgotten")
	}
	for i := 0; err == nil && i < len(before); i++ {
		s.arm()
		err = s.event(&before[i])
	}
	if err != nil {
		return err
	}
	return s.rc.Flush()
}

// follow writes what happens until the follower leaves.
func (s *eventStream) follow(ctx context.Context, sub *events.Subscription) error {
	beat := time.NewTicker(followBeat)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			s.arm()
			_, err = io.WriteString(s.w, ": beat\n\n")
		case e := <-sub.C:
			s.arm()
			err = s.event(&e)
			for more := true; more && err == nil; { // what is there already shares the flush
				select {
				case e = <-sub.C:
					err = s.event(&e)
				default:
					more = false
				}
			}
		}
		if err == nil {
			err = s.rc.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// arm bounds the writes that follow.
func (s *eventStream) arm() { _ = s.rc.SetWriteDeadline(time.Now().Add(followWrite)) }

func (s *eventStream) event(e *events.Event) error {
	if e.Gap > 0 {
		if err := s.missed(&e.Gap, "slow"); err != nil {
			return err
		}
	}
	v := eventView{ID: s.h.showID(e.ID), At: e.At, Kind: e.Kind.String(), Node: e.NodeID, Generation: e.Generation, Adapter: e.Adapter,
		RunID: e.RunID, Attempt: e.Attempt, Principal: e.Principal, Model: e.Model, Position: e.Position, Code: e.Code, Text: e.Text}
	if e.Kind.Run() {
		after := e.After.Milliseconds()
		v.AfterMS = &after
	}
	s.sent++
	return s.write(v.ID, v.Kind, v)
}

func (s *eventStream) missed(n *uint64, why string) error {
	return s.write("", "missed", missedView{"missed", n, why})
}

// write writes one event; JSON has no line breaks.
func (s *eventStream) write(id, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	_, err = fmt.Fprintf(s.w, "%sevent: %s\ndata: %s\n\n", id, name, data)
	return err
}
