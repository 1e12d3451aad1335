package node

import (
	"time"

	pb "iop/proto/iop"
)

// StoreChanged tells the Edge that the journal can't be written, or can be again. It never blocks.
func (x *Executor) StoreChanged(degraded bool, reason string) {
	if degraded {
		x.tellStoreEvent("store_degraded", reason)
	}
	x.sendStatus()
}

// StoreSetAside tells the Edge that the journal was damaged and begun anew. It never blocks.
func (x *Executor) StoreSetAside(text string) { x.tellStoreEvent("store_set_aside", text) }

// tellStoreEvent sends news of the store, or keeps the latest for the next connection.
func (x *Executor) tellStoreEvent(code, text string) {
	event := &pb.EdgeNodeEvent{Kind: pb.EventKind_EVENT_KIND_STORE_DEGRADED, Code: code, Text: cut(text, 256), AtMs: time.Now().UnixMilli()}
	x.mu.Lock()
	s := x.serving
	if s == nil {
		x.storeNews = event
	}
	x.mu.Unlock()
	if s != nil {
		s.link.SendEvent(event)
	}
}

// tellStore tells a new connection how the store is, if there is anything to tell.
func (s *Session) tellStore() {
	s.x.mu.Lock()
	event := s.x.storeNews
	s.x.storeNews = nil
	s.x.mu.Unlock()
	if event != nil {
		s.link.SendEvent(event)
	}
	if s.x.storeState() == pb.StoreState_STORE_STATE_DEGRADED {
		s.x.sendStatus()
	}
}

// storeState is the journal's state in the words of the wire.
func (x *Executor) storeState() pb.StoreState {
	switch {
	case x.cfg.Journal == nil:
		return pb.StoreState_STORE_STATE_UNSPECIFIED
	case x.cfg.Journal.Health().Degraded:
		return pb.StoreState_STORE_STATE_DEGRADED
	}
	return pb.StoreState_STORE_STATE_OK
}
