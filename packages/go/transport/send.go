package transport

import (
	"strings"
	"time"
	"unicode/utf8"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// The Send methods put a message into the control mailbox. They never block, may be called from anywhere at any time,
// and do nothing once the link is down or a Goodbye was sent.

// SendCancel asks the node to cancel an execution; edge only. The first cause stands.
func (l *Link) SendCancel(runID string, cause execution.CancelCause) {
	m := &pb.CancelRequest{Type: pb.CancelType_CANCEL_TYPE_CANCEL_RUN, RunId: runID, Cause: pb.CancelCause(cause)}
	l.box.put(func(b *letters) { b.edge.cancel(m) })
}

// SendReadyAck confirms a Ready; edge only, the latest wins.
func (l *Link) SendReadyAck(projection uint64, dispatchable bool) {
	m := &pb.ReadyAck{Projection: projection, Dispatchable: dispatchable}
	l.box.put(func(b *letters) { b.edge.ack = m })
}

// SendRefresh sends a new projection; edge only, the latest wins. p isn't changed afterwards.
func (l *Link) SendRefresh(p *pb.NodeConfigPayload) {
	l.box.put(func(b *letters) { b.edge.refresh = p })
}

// SendDrainNotice tells the node that the edge drains, or doesn't any more; edge only, the latest wins.
func (l *Link) SendDrainNotice(n *pb.DrainNotice) {
	l.box.put(func(b *letters) { b.edge.notice = n })
}

// SendRunEndedAck confirms ends of background runs; edge only. What finds no room isn't confirmed: the node says it again.
func (l *Link) SendRunEndedAck(ids ...string) {
	l.box.put(func(b *letters) {
		b.edge.endAcks = append(b.edge.endAcks, ids[:min(len(ids), maxAnswers-len(b.edge.endAcks))]...)
	})
}

// SendReady sends the node's full state; node only. The control writer builds it at the moment it is written, the latest
// wins. Ends of runs wait in the mailbox until the first one.
func (l *Link) SendReady(build func() *pb.Ready) {
	l.box.put(func(b *letters) { b.node.ready = build })
}

// SendStatus sends the node's state between two Readys; node only. It is built when it is written, the latest wins.
func (l *Link) SendStatus(build func() *pb.NodeStatus) {
	l.box.put(func(b *letters) { b.node.status = build })
}

// SendRunEnded says that an execution is over and its place free; node only. Ends that wait go out together.
func (l *Link) SendRunEnded(e *pb.RunEnd) {
	l.box.put(func(b *letters) { b.node.ended = append(b.node.ended, e) })
}

// SendCancelResult answers a cancel; node only. What finds no room isn't sent.
func (l *Link) SendCancelResult(r *pb.CancelResult) {
	r.Text = cut(r.Text, 128)
	l.box.put(func(b *letters) {
		if len(b.node.results) < maxAnswers {
			b.node.results = append(b.node.results, r)
		}
	})
}

// SendEvent tells the edge of an event; node only. Events are news, not state: over one a second (with a burst of 20)
// they are dropped.
func (l *Link) SendEvent(e *pb.EdgeNodeEvent) {
	e.Text = cut(e.Text, 256)
	if !l.events.Allow() {
		return
	}
	l.box.put(func(b *letters) {
		if len(b.node.events) < maxEvents {
			b.node.events = append(b.node.events, e)
		}
	})
}

// SendRevoked tells the node that leases of a slot don't count any more; edge only.
func (l *Link) SendRevoked(m *pb.CredentialRevoked) {
	l.box.put(func(b *letters) { b.edge.revoked = append(b.edge.revoked, m) })
}

// SendRevokeAck says that it has taken that in; node only.
func (l *Link) SendRevokeAck(m *pb.RevokeAck) {
	l.box.put(func(b *letters) { b.node.revoked = append(b.node.revoked, m) })
}

// Beat sends a heartbeat now, beside those that are due, unless the last is still to be answered: only an answer to the
// last one tells the round trip, and a node the edge's time.
func (l *Link) Beat() {
	if !l.beats.awaited() {
		l.beat()
	}
}

func (l *Link) beat() {
	l.box.put(func(b *letters) { b.pulse.beat = true })
}

// SendRecipientKey announces the node's next recipient key; node only, the latest wins.
func (l *Link) SendRecipientKey(public []byte) {
	l.box.put(func(b *letters) { b.node.key = &pb.RecipientKey{PublicKey: public} })
}

// SendRecipientChallenge asks the node to prove it; edge only, the latest wins.
func (l *Link) SendRecipientChallenge(enc []byte) {
	l.box.put(func(b *letters) { b.edge.asked = &pb.RecipientChallenge{Enc: enc} })
}

// SendRecipientProof is the answer; node only.
func (l *Link) SendRecipientProof(proof []byte) {
	l.box.put(func(b *letters) { b.node.proof = &pb.RecipientProof{Proof: proof} })
}

// SendGoodbye says why this side leaves. It goes last and alone, after the work that is pending; then the link ends
// with ReasonClosed, as soon as the peer has closed its side, and after a second at the latest.
func (l *Link) SendGoodbye(g *pb.Goodbye) {
	g.Text = cut(g.Text, 512)
	l.mu.Lock()
	again := l.leaving
	l.leaving = true
	l.mu.Unlock()
	if again {
		return
	}
	l.box.putGoodbye(g)
	time.AfterFunc(l.cfg.Part, func() { l.Close(ReasonClosed) })
}

// cut shortens a text for people to n bytes and makes it UTF-8, without which it couldn't be encoded.
func cut(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "?")
}
