package transport

import (
	"io"
	"time"

	"github.com/hashicorp/yamux"
	"google.golang.org/protobuf/proto"

	"iop/packages/go/faultpoint"
	pb "iop/proto/iop"
)

// maxRunEnded is the cap of a RunEnded and of a RunEndedAck; longer lists go out in several messages.
const maxRunEnded = 64 << 10

// muxStream is what the control loop needs of a stream; a test gives it the end of a pipe.
type muxStream interface {
	io.Reader
	io.Writer
	SetWriteDeadline(t time.Time) error
}

// controlWriter is the one writer of the control stream.
type controlWriter struct {
	link   *Link
	stream muxStream
	buf    []byte
	err    error // the first; nothing is written after it
}

// run writes what the mailbox gets until the link is down, and then a Goodbye that still waits.
func (w *controlWriter) run() {
	l := w.link
	for {
		letters, some := l.box.take()
		switch {
		case !some:
			select {
			case <-l.box.wake:
			case <-l.down:
				w.farewell(l.box.takeGoodbye())
				return
			}
			continue
		case letters.goodbye != nil:
			w.farewell(letters.goodbye)
			return
		}
		w.write(&letters)
		if w.err != nil {
			l.end(controlFault(w.err))
			return
		}
	}
}

// farewell writes the last message, after the work that waits: it must not overtake the end of an answer. The peer
// closes the connection when it has read it; until then, or the limit of SendGoodbye, this side waits.
func (w *controlWriter) farewell(g *pb.Goodbye) {
	if g == nil {
		return
	}
	c := w.link.conn
	select {
	case <-c.allFlushed():
	case <-c.failed:
		return
	}
	if w.link.edge != nil {
		w.put(&pb.EdgeControl{Message: &pb.EdgeControl_Goodbye{Goodbye: g}})
	} else {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_Goodbye{Goodbye: g}})
	}
	w.flush()
}

// write encodes letters in the order of the wire contract and writes them.
func (w *controlWriter) write(l *letters) {
	w.writePulse(&l.pulse)
	if w.link.edge != nil {
		w.writeEdge(&l.edge)
	} else {
		w.writeNode(&l.node)
	}
	w.flush()
	if w.err == nil {
		w.link.probesFlushed(l.pulse.probes)
	}
}

func (w *controlWriter) writePulse(p *pulse) {
	if p.empty() {
		return
	}
	w.link.conn.faults.At(faultpoint.LinkHeartbeat, w.link.conn.peer)
	hb := &pb.Heartbeat{Echo: p.echo}
	now := w.link.conn.elapsed()
	if p.echo != 0 {
		hb.EchoDelayMs = (now - p.heard).Milliseconds()
	}
	if p.beat || len(p.probes) > 0 {
		hb.Nonce = w.link.beats.next(now, w.link.reading(), p.probes)
	}
	if w.link.edge == nil {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_Heartbeat{Heartbeat: hb}})
		return
	}
	hb.SentMs = w.link.cfg.Now().UnixMilli()
	w.put(&pb.EdgeControl{Message: &pb.EdgeControl_Heartbeat{Heartbeat: hb}})
}

func (w *controlWriter) writeEdge(e *edgeLetters) {
	for _, m := range e.cancels {
		w.put(&pb.EdgeControl{Message: &pb.EdgeControl_Cancel{Cancel: m}})
	}
	for _, m := range e.revoked {
		w.put(&pb.EdgeControl{Message: &pb.EdgeControl_CredentialRevoked{CredentialRevoked: m}})
	}
	if e.asked != nil {
		w.put(&pb.EdgeControl{Message: &pb.EdgeControl_RecipientChallenge{RecipientChallenge: e.asked}})
	}
	if e.ack != nil {
		w.put(&pb.EdgeControl{Message: &pb.EdgeControl_ReadyAck{ReadyAck: e.ack}})
	}
	for ids := range chunks(e.endAcks, func(id string) int { return len(id) + 2 }) {
		w.put(&pb.EdgeControl{Message: &pb.EdgeControl_RunEndedAck{RunEndedAck: &pb.RunEndedAck{RunIds: ids}}})
	}
	if e.refresh != nil {
		w.put(&pb.EdgeControl{Message: &pb.EdgeControl_ConfigRefresh{ConfigRefresh: &pb.ConfigRefresh{Config: e.refresh}}})
	}
	if e.notice != nil {
		w.put(&pb.EdgeControl{Message: &pb.EdgeControl_DrainNotice{DrainNotice: e.notice}})
	}
}

func (w *controlWriter) writeNode(n *nodeLetters) {
	for _, m := range n.results {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_CancelResult{CancelResult: m}})
	}
	for _, m := range n.revoked {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_RevokeAck{RevokeAck: m}})
	}
	if n.key != nil {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_RecipientKey{RecipientKey: n.key}})
	}
	if n.proof != nil {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_RecipientProof{RecipientProof: n.proof}})
	}
	if n.ready != nil {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_Ready{Ready: n.ready()}})
	}
	for ends := range chunks(n.ended, func(e *pb.RunEnd) int { return proto.Size(e) + 4 }) {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_RunEnded{RunEnded: &pb.RunEnded{Ends: ends}}})
	}
	if n.status != nil {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_NodeStatus{NodeStatus: n.status()}})
	}
	for _, e := range n.events {
		w.put(&pb.NodeControl{Message: &pb.NodeControl_Event{Event: e}})
	}
}

// chunks cuts a list into runs whose sizes sum up to less than the cap of a RunEnded.
func chunks[T any](list []T, size func(T) int) func(yield func([]T) bool) {
	return func(yield func([]T) bool) {
		from, sum := 0, 0
		for i, v := range list {
			n := size(v)
			if i > from && sum+n > maxRunEnded {
				if !yield(list[from:i]) {
					return
				}
				from, sum = i, 0
			}
			sum += n
		}
		if from < len(list) {
			yield(list[from:])
		}
	}
}

// put encodes m behind what is in buf, and writes whole pieces.
func (w *controlWriter) put(m proto.Message) {
	if w.err != nil {
		return
	}
	w.buf, w.err = appendFrame(w.buf, m, MaxControl)
	if len(w.buf) >= piece {
		w.flush()
	}
}

// flush writes buf in pieces, each of which waits until it is with the kernel: a snapshot of 1 MiB doesn't fill the
// control lane, and what comes meanwhile merges in the mailbox.
func (w *controlWriter) flush() {
	for b := w.buf; w.err == nil && len(b) > 0; {
		n := min(len(b), piece)
		// The window fills only if the peer's reader is stuck; that ends the link like silence does.
		_ = w.stream.SetWriteDeadline(time.Now().Add(w.link.cfg.Dead))
		if _, w.err = w.stream.Write(b[:n]); w.err != nil {
			break
		}
		b = b[n:]
		select {
		case <-w.link.conn.controlFlushed():
		case <-w.link.conn.failed:
			w.err = ErrLinkDown
		}
	}
	w.buf = w.buf[:0]
	if cap(w.buf) > 2*piece {
		w.buf = nil
	}
}

// controlFault says how the link ends when its control stream fails.
func controlFault(err error) *LinkError {
	if t, ok := err.(interface{ Timeout() bool }); ok && t.Timeout() || err == yamux.ErrConnectionWriteTimeout {
		return &LinkError{Reason: ReasonDead, Text: "the peer doesn't read its control stream", Err: err}
	}
	if _, ok := err.(*FrameError); ok {
		return &LinkError{Reason: ReasonProtocol, Text: "control stream: " + err.Error(), Err: err}
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF || err == yamux.ErrConnectionReset {
		return &LinkError{Reason: ReasonProtocol, Text: "the peer closed the control stream", Err: err}
	}
	return &LinkError{Reason: ReasonLost, Text: "control stream: " + err.Error(), Err: err}
}

// readControl is the one reader of the control stream. It returns when the link is over.
func (l *Link) readControl(stream muxStream) {
	in := frameReader{src: stream, pool: &l.buffers}
	for {
		b, err := in.next(MaxControl)
		if l.isDown() {
			return
		}
		if err == nil {
			err = l.handleControl(b)
		}
		if err != nil {
			l.end(controlFault(err))
			return
		}
	}
}

func (l *Link) handleControl(b []byte) error {
	if l.edge != nil {
		return l.handleNodeControl(b)
	}
	return l.handleEdgeControl(b)
}

func (l *Link) handleNodeControl(b []byte) error {
	m := new(pb.NodeControl)
	if err := unmarshal(b, m); err != nil {
		return err
	}
	if err := checkKind(len(b), nodeControlCap(m)); err != nil {
		return err
	}
	switch v := m.Message.(type) {
	case nil:
		l.unknown.Add(1) // a newer peer: ignored and counted
	case *pb.NodeControl_Heartbeat:
		l.handleHeartbeat(v.Heartbeat)
	case *pb.NodeControl_Goodbye:
		l.edge.Control(m)
		l.end(&LinkError{Reason: ReasonLeft, Text: "the node said goodbye", Goodbye: v.Goodbye})
	default:
		l.edge.Control(m)
	}
	return nil
}

func (l *Link) handleEdgeControl(b []byte) error {
	m := new(pb.EdgeControl)
	if err := unmarshal(b, m); err != nil {
		return err
	}
	if err := checkKind(len(b), edgeControlCap(m)); err != nil {
		return err
	}
	switch v := m.Message.(type) {
	case nil:
		l.unknown.Add(1)
	case *pb.EdgeControl_Heartbeat:
		l.handleHeartbeat(v.Heartbeat)
	case *pb.EdgeControl_Goodbye:
		l.node.Control(m)
		l.end(&LinkError{Reason: ReasonLeft, Text: "the edge said goodbye", Goodbye: v.Goodbye})
	default:
		l.node.Control(m)
	}
	return nil
}

// envelope is the most that the oneof around a message adds to its size.
const envelope = 8

func checkKind(n, limit int) error {
	if n > limit+envelope {
		return frameErrorf(FrameTooLarge, "control message of %d bytes over its kind's cap of %d", n, limit)
	}
	return nil
}

func nodeControlCap(m *pb.NodeControl) int {
	switch m.Message.(type) {
	case *pb.NodeControl_Heartbeat, *pb.NodeControl_CancelResult, *pb.NodeControl_RecipientProof:
		return 256
	case *pb.NodeControl_Event, *pb.NodeControl_Goodbye:
		return 1 << 10
	case *pb.NodeControl_RecipientKey:
		return 8 << 10
	case *pb.NodeControl_RunEnded, *pb.NodeControl_RevokeAck:
		return 64 << 10
	}
	return MaxControl
}

func edgeControlCap(m *pb.EdgeControl) int {
	switch m.Message.(type) {
	case *pb.EdgeControl_ReadyAck, *pb.EdgeControl_DrainNotice:
		return 64
	case *pb.EdgeControl_Heartbeat, *pb.EdgeControl_Cancel:
		return 256
	case *pb.EdgeControl_Goodbye:
		return 1 << 10
	case *pb.EdgeControl_RecipientChallenge:
		return 8 << 10
	case *pb.EdgeControl_RunEndedAck, *pb.EdgeControl_CredentialRevoked:
		return 64 << 10
	}
	return MaxControl
}
