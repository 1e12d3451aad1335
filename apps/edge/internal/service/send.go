package service

import (
	"errors"
	"io"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// inlineBody is the longest request body that the driver writes before it begins to read: it fits the stream's first
// window, so that the write can't wait for a node that waits for us. A longer one is written by a goroutine.
const inlineBody = 256 << 10

// oneFlush is the size up to which the open, the body and its end are written at once. The multiplexer takes such a
// piece as a whole or not at all, so a failed write on a living link proves that the node didn't get the open.
const oneFlush = 12 << 10

// send writes the open and the body. It doesn't wait for the node's accepted: that would cost a round trip.
func (a *attempt) send() bool {
	a.at(faultpoint.EdgeSent)
	size := a.run.out.BytesIn
	open := a.by.open(a.run, a.grant)
	a.lend(open)
	a.traced(open)
	if err := a.stream.Append(open); err != nil {
		return a.unwritten(err)
	}
	if size+openSize(open) > oneFlush {
		err := a.stream.Flush()
		if a.opened = mayHaveLeft(err); err != nil {
			return a.unwritten(err)
		}
	}
	if size > inlineBody {
		a.writer = a.writeAside()
		return true
	}
	err := a.writeBody()
	a.opened = a.opened || mayHaveLeft(err)
	if err != nil {
		return a.unwritten(err)
	}
	return true
}

// mayHaveLeft reports whether what a write was given may be at the node: a link's end hides how far the write came.
func mayHaveLeft(err error) bool { return err == nil || errors.Is(err, transport.ErrLinkDown) }

// openSize bounds the size of an encoded open from above, without encoding a tunnel's.
func openSize(m *pb.WorkOpen) int64 {
	t := m.GetTunnel()
	if t == nil {
		return int64(proto.Size(m))
	}
	n := 512 + len(m.GetTraceparent()) + len(m.GetTracestate()) + len(t.GetLease()) + len(t.GetPath()) + len(t.GetQuery()) + len(t.GetTarget()) + len(t.GetRoute())
	for _, h := range t.GetHeaders() {
		n += len(h.GetName()) + len(h.GetValue()) + 16
	}
	return int64(n)
}

// unwritten decides a run whose request couldn't be written. The read that would tell more isn't tried: the request
// is incomplete.
func (a *attempt) unwritten(err error) bool {
	r := a.run
	var fault *transport.FrameError
	var body *bodyError
	switch {
	case r.decided():
	case errors.As(err, &body):
		r.bodyFailed(body)
	case errors.As(err, &fault):
		r.decide(execution.Failf(execution.CodeBadRequest, execution.OriginCaller,
			"the request's head doesn't fit a message to the node: %s", fault.Text))
	case errors.Is(err, transport.ErrLinkDown):
		a.linkLost()
	case a.opened:
		return true // the node closed the stream; what it said before is still to be read
	default:
		r.decide(protocolFailure("the node closed the stream before it had the request"))
	}
	return false
}

// bodyError is a request body that couldn't be read back.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "read request body back: " + e.err.Error() }

func (e *bodyError) Unwrap() error { return e.err }

func (r *Run) bodyFailed(err *bodyError) {
	r.service.cfg.Log.Error().Err(err.err).Str("run_id", r.id).Msg("read request body back")
	r.decide(execution.Failf(execution.CodeInternal, execution.OriginEdge, "the edge couldn't read the request body back"))
}

// writeBody writes the body in pieces and its end. The last piece and the end share a write.
func (a *attempt) writeBody() error {
	r := a.run
	total, seq, body := r.out.BytesIn, uint64(1), a.by.body()
	buf := r.service.buffers.Get().(*[]byte)
	defer r.service.buffers.Put(buf)
	for sent := int64(0); sent < total; seq++ {
		p := (*buf)[:min(int64(len(*buf)), total-sent)]
		if n, err := body.ReadAt(p, sent); n < len(p) {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return &bodyError{err}
		}
		if err := a.stream.AppendBody(seq, p); err != nil {
			return err
		}
		if sent += int64(len(p)); sent < total {
			if err := a.stream.Flush(); err != nil {
				return err
			}
		}
	}
	end := &pb.WorkInput{Seq: seq, Input: &pb.WorkInput_End{End: &pb.InputEnd{TotalBytes: total}}}
	if err := a.stream.Append(end); err != nil {
		return err
	}
	err := a.stream.Flush()
	a.written = mayHaveLeft(err)
	return err
}

// writer is the goroutine that writes a long body while the driver reads: the node may refuse or answer before it has
// taken all of it.
type writer struct{ done chan struct{} }

func (a *attempt) writeAside() *writer {
	w := &writer{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer a.run.recovered()
		var body *bodyError
		if errors.As(a.writeBody(), &body) {
			a.run.bodyFailed(body) // any other error the reader sees, too
		}
	}()
	return w
}

// stop ends the writer and returns when it has ended: the body belongs to whoever submitted it again,
// or to the next attempt.
func (w *writer) stop(s interface{ Cancel() }) {
	select {
	case <-w.done:
	default:
		s.Cancel()
		<-w.done
	}
}
