package node

import (
	"time"

	pb "iop/proto/iop"
)

// The bounds of what is remembered about cancels that overtook their open.
const (
	tombstoneLife = 60 * time.Second
	maxTombstones = 4096
)

// tombstones remembers the run_ids of cancels that found nothing, for a while: the open may still be on its way. When
// there are too many the oldest is forgotten. The zero value is empty.
type tombstones struct {
	until map[string]time.Time
	order []tombstone // by expiry, which is the order of entry
}

type tombstone struct {
	id    string
	until time.Time
}

func (t *tombstones) add(id string, now time.Time) {
	t.expire(now)
	if t.until == nil {
		t.until = map[string]time.Time{}
	}
	until := now.Add(tombstoneLife)
	t.until[id] = until
	t.order = append(t.order, tombstone{id, until})
	for len(t.order) > maxTombstones {
		t.dropOldest()
	}
}

func (t *tombstones) has(id string, now time.Time) bool {
	t.expire(now)
	_, ok := t.until[id]
	return ok
}

func (t *tombstones) expire(now time.Time) {
	for len(t.order) > 0 && !now.Before(t.order[0].until) {
		t.dropOldest()
	}
}

// dropOldest forgets one entry; an id that was cancelled again meanwhile stays by its later one.
func (t *tombstones) dropOldest() {
	oldest := t.order[0]
	t.order = t.order[1:]
	if t.until[oldest.id].Equal(oldest.until) {
		delete(t.until, oldest.id)
	}
}

// Cancel handles a CancelRequest and answers it. It only looks things up: the cancelling is done elsewhere.
func (s *Session) Cancel(req *pb.CancelRequest) {
	result, text := pb.CancelOutcome_CANCEL_OUTCOME_REFUSED, ""
	switch {
	case req.GetType() != pb.CancelType_CANCEL_TYPE_CANCEL_RUN:
		text = "there is no such type of cancel"
	case !validID(req.GetRunId()):
		text = "a cancel names the run_id that it is for"
	default:
		result = s.cancelRun(req)
	}
	s.log.Debug().Str("run_id", loggable(req.GetRunId())).AnErr("cause", causeFromWire(req.GetCause())).
		Stringer("result", result).Msg("cancel request")
	s.link.SendCancelResult(&pb.CancelResult{RunId: cut(req.GetRunId(), 64), Result: result, Text: text})
}

func (s *Session) cancelRun(req *pb.CancelRequest) pb.CancelOutcome {
	x, id := s.x, req.GetRunId()
	x.mu.Lock()
	if t := x.running[id]; t != nil {
		x.mu.Unlock()
		t.cancel(causeFromWire(req.GetCause()))
		return pb.CancelOutcome_CANCEL_OUTCOME_CANCELLING
	}
	if c := x.commands[id]; c != nil && c.session == s {
		over := c.over
		x.mu.Unlock()
		c.cancel(causeFromWire(req.GetCause()))
		if over {
			c.stream.Cancel() // nobody wants the rest of its answer
			return pb.CancelOutcome_CANCEL_OUTCOME_ALREADY_ENDED
		}
		return pb.CancelOutcome_CANCEL_OUTCOME_CANCELLING
	}
	ended, told := x.lingeringLocked(id), s.told[id]
	if ended == nil && !told {
		x.tombs.add(id, time.Now())
	}
	x.mu.Unlock()
	switch {
	case ended != nil:
		ended.stream.Cancel() // nobody wants the rest of its answer
	case !told: // else a background run whose end the edge hasn't taken note of yet
		x.cfg.Observer.Late("cancel")
		return pb.CancelOutcome_CANCEL_OUTCOME_NOT_FOUND
	}
	return pb.CancelOutcome_CANCEL_OUTCOME_ALREADY_ENDED
}

func (x *Executor) lingeringLocked(id string) *task {
	for e := x.lingering.Front(); e != nil; e = e.Next() {
		if t := e.Value.(*task); t.runID == id {
			return t
		}
	}
	return nil
}
