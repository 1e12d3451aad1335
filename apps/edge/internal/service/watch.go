package service

import (
	"sync"
	"time"

	"iop/packages/go/execution"
)

// phase is how far the current attempt of a run has come.
type phase uint8

const (
	phaseWaiting   phase = iota // no attempt is under way
	phaseGranted                // owns a place; nothing was written
	phaseSent                   // from before the first byte of the open
	phaseAccepted               // the node has it
	phaseStreaming              // the response's head is here
)

// watch bounds what a run waits for from a node with one timer: the answer to the open (dispatch_limit), then, once
// the node said that the execution is over, the terminal (terminal_wait) unless the response has begun. While a
// response streams nothing here runs: a slow caller makes the terminal late by its own doing.
type watch struct {
	expired func(error) // set once; decides the run

	mu      sync.Mutex
	phase   phase
	attempt uint32
	ended   bool // RunEnded of the current attempt came
	timer   *time.Timer
	due     time.Time
	why     execution.Code // 0 = not armed
}

// begin starts an attempt: the node has limit to answer.
func (w *watch) begin(attempt uint32, limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase, w.attempt, w.ended = phaseGranted, attempt, false
	w.armLocked(execution.CodeDispatchTimeout, limit)
}

// enter records progress of the current attempt, and reports whether the node has said before that it is over, so that
// only its caller's reading is left.
func (w *watch) enter(p phase) (reading bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = p
	switch {
	case p == phaseAccepted && !w.ended, p == phaseStreaming, p == phaseWaiting:
		w.why = 0
		w.timer.Stop()
	}
	return p == phaseStreaming && w.ended
}

// nodeEnded records that the node reported the end of an attempt. Another attempt than the current one is ignored. It
// reports whether the answer had begun, so that only its caller's reading is left.
func (w *watch) nodeEnded(attempt uint32, wait time.Duration) (reading bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if attempt != w.attempt || w.ended {
		return false
	}
	w.ended = true
	if w.phase == phaseSent || w.phase == phaseAccepted {
		w.armLocked(execution.CodeProtocol, wait)
	}
	return w.phase == phaseStreaming
}

// at returns the current phase.
func (w *watch) at() phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phase
}

func (w *watch) armLocked(why execution.Code, d time.Duration) {
	w.why, w.due = why, time.Now().Add(d)
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.fire)
		return
	}
	w.timer.Reset(d)
}

// fire runs in a goroutine of the timer's. One that was overtaken by a new arming finds that nothing is due.
func (w *watch) fire() {
	w.mu.Lock()
	why, due, phase := w.why, w.due, w.phase
	if why == 0 || time.Now().Before(due) {
		w.mu.Unlock()
		return
	}
	w.why = 0
	w.mu.Unlock()
	w.expired(overdue(why, phase))
}

// overdue is the failure of a run that a limit ended.
func overdue(why execution.Code, at phase) *execution.Failure {
	switch {
	case why == execution.CodeProtocol:
		return protocolFailure("the node said that the execution is over, but not how it ended")
	case at < phaseSent:
		return &execution.Failure{Code: why, Origin: execution.OriginEdge, NothingSent: true,
			Text: "no stream to the node could be opened within the dispatch limit"}
	}
	return &execution.Failure{Code: why, Origin: execution.OriginEdge,
		Text: "the node didn't answer within the dispatch limit; the request isn't sent again, since it may have arrived"}
}
