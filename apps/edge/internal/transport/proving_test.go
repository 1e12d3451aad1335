package transport_test

import (
	"bytes"
	"testing"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/transport"
	"iop/packages/go/identity/identitytest"
	"iop/packages/go/patience"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// §2.A proving: EOF, a frame that is none, and another request in the proof's place. However it ends, nothing is
// registered, and the node may try again at once.
func TestProvingEnds(t *testing.T) {
	s, _ := newLending(t)
	for name, c := range map[string]struct {
		act  func(r *recipient) error
		want string // the event; "" = none, since whoever leaves is no news
	}{
		"leaves":              {func(r *recipient) error { return r.conn.Close() }, ""},
		"sends no message":    {func(r *recipient) error { _, err := r.conn.Write([]byte{0, 0, 0, 0}); return err }, "protocol"},
		"promises too much":   {func(r *recipient) error { _, err := r.conn.Write([]byte{0xff, 0xff, 0xff, 0xff}); return err }, "protocol"},
		"registers once more": {func(r *recipient) error { return link.WriteMessage(r.conn, edgetest.Hello("a")) }, "pop_failed"},
		"proves at length": {func(r *recipient) error {
			return link.WriteMessage(r.conn, &pb.RegisterProof{Proof: bytes.Repeat([]byte("x"), 300)})
		}, "protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecipient(t, s.dial(s.ca.Node(t, "a")))
			resp, err := edgetest.Register(r.conn, r.hello("a"))
			if err != nil || resp.GetChallenge() == nil {
				t.Fatalf("%v, %v: no challenge", resp, err)
			}
			if err := c.act(r); err != nil {
				t.Fatal(err)
			}
			if c.want != "" {
				s.seen.want(t, events.KindRefused, c.want)
			}
			eventually(t, "it is gone", func() bool { return s.Server.Stats().Unregistered == 0 })
			if s.Registry.Current("a") != nil {
				t.Error("somebody was let in")
			}
		})
	}
	r := newRecipient(t, s.dial(s.ca.Node(t, "a")))
	if resp := r.register("a", r.right); !resp.GetAccepted() {
		t.Errorf("the next try: %v", resp)
	}
}

// §2.A proving: who never answers the challenge is closed by the handshake's limit.
func TestProvingIsBounded(t *testing.T) {
	ca := identitytest.NewCA(t, "ca")
	id, files := identitytest.Open(t, ca.Edge(t), ca)
	patience.Widen(t, 2*time.Second, func(limit time.Duration) bool {
		e := edgetest.Start(t, edgetest.Options{Nodes: managedNodes(), Identity: id, Leases: &lender{},
			Timers: transport.Timers{Handshake: limit}})
		s := &managedSite{Edge: e, t: t, ca: ca, files: files, id: id, seen: follow(e)}
		conn, err := s.tryDial(s.ca.Node(t, "a"))
		if err != nil {
			return false
		}
		resp, err := edgetest.Register(conn, newRecipient(t, conn).hello("a"))
		if err != nil || resp.GetChallenge() == nil {
			return false
		}
		s.seen.want(t, events.KindRefused, "handshake_timeout")
		eventually(t, "it is gone", func() bool { return s.Server.Stats().Unregistered == 0 })
		if s.Registry.Current("a") != nil {
			t.Error("it was let in")
		}
		return true
	})
}
