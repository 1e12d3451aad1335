package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"iop/apps/edge/internal/node"
	"iop/packages/go/identity"
	pb "iop/proto/iop"
)

const (
	// expiryNotice is how long before its certificate's end a node gets no more work, at most a tenth of its life.
	expiryNotice = time.Minute
	// leaverLook is the time between two looks whether what runs on a connection that was handed over has ended.
	leaverLook = time.Second
)

// secure does the TLS handshake of mode managed, after which h.conn is encrypted and h.peer proved. What the peer shows
// is judged here as a certificate; whose it is due to be is the registry's to say.
func (h *handshake) secure() error {
	if h.s.cfg.Identity == nil {
		return nil
	}
	if err := h.bare.SetDeadline(h.deadline); err != nil {
		return errGone
	}
	leave := h.s.crowd.enter(h.bare, patience)
	// Not the server's context: its end closes the connection already.
	conn, peer, err := h.s.cfg.Identity.Server(context.Background(), h.bare, func() {
		leave()
		leave = h.s.crowd.enter(h.bare, roundTrip)
	})
	leave()
	if err != nil {
		return h.insecure(err)
	}
	h.conn, h.peer = conn, peer
	return nil
}

// insecure says what a failed TLS handshake is. The peer was told by TLS, if it speaks that; nothing of its certificate
// is in the text, which others see.
func (h *handshake) insecure(err error) error {
	refused := func(reason pb.RegisterReason, text string) error {
		return &silent{node.Refusal{Reason: reason, Text: text, Cause: err}}
	}
	op := new(net.OpError)
	switch {
	case identity.NotTLS(err):
		return refused(pb.RegisterReason_REGISTER_REASON_PROTOCOL,
			"it doesn't speak TLS, which this edge insists on; a node needs tls in its configuration")
	case identity.Refused(err):
		return refused(pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH,
			"the node doesn't accept this edge's certificate; its log says why")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refused(pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT, "no TLS handshake within the limit")
	case errors.As(err, &op), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return errGone
	}
	h.letRead()
	return refused(pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH, "its certificate isn't accepted")
}

// letRead lets the peer read TLS's refusal: to close while its registration is unread would destroy it.
func (h *handshake) letRead() {
	half, ok := h.bare.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || h.bare.SetReadDeadline(time.Now().Add(refuseWrite)) != nil {
		return
	}
	const most = 32 << 10 // a registration, and what TLS puts around it
	_, _ = io.CopyN(io.Discard, h.bare, most)
}

// guard ends a connection with its certificate or with the trust in it, and one that was handed over with the last that
// runs on it. It ends with the link.
func (s *Server) guard(c *node.Connection) {
	end := time.NewTimer(time.Until(c.Peer.NotAfter))
	defer end.Stop()
	notice := time.NewTimer(time.Until(c.Peer.NotAfter) - min(expiryNotice, c.Peer.NotAfter.Sub(c.Peer.NotBefore)/10))
	defer notice.Stop()
	look := time.NewTicker(leaverLook)
	look.Stop() // until there is something to look at
	defer look.Stop()
	handed, idle := c.HandedOver(), 0
	changed := s.trusted(c) // at once: what is trusted may have changed since the handshake
	for {
		select {
		case <-c.Down():
			return
		case <-changed:
			changed = s.trusted(c)
		case <-notice.C:
			c.Expiring()
		case <-end.C:
			// The timer doesn't follow the wall clock, by which certificates are dated.
			if left := time.Until(c.Peer.NotAfter); left > 0 {
				end.Reset(left)
				continue
			}
			s.cfg.Registry.Fence(c, node.FenceIdentityExpired, "the node's certificate has expired")
		case <-handed:
			handed = nil
			look.Reset(leaverLook)
		case <-look.C:
			// Twice, so that a word which overtook another on its way isn't lost.
			if idle++; c.Link.Status().OpenStreams > 0 {
				idle = 0
			}
			if idle == 2 {
				s.cfg.Registry.Fence(c, node.FenceSuperseded, "what ran on it has ended, and another connection serves")
			}
		}
	}
}

// trusted ends a connection whose certificate isn't good by what is trusted now, and returns what tells of the next
// change of that.
func (s *Server) trusted(c *node.Connection) (changed <-chan struct{}) {
	changed = s.cfg.Identity.Changed()
	if err := s.cfg.Identity.Current().Still(c.Peer, time.Now()); err != nil {
		s.cfg.Registry.Fence(c, node.FenceIdentityExpired, "the node's certificate isn't good any more: "+err.Error())
	}
	return changed
}
