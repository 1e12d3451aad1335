package diagnose

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"iop/apps/node/internal/transport"
	"iop/packages/go/doctor"
	"iop/packages/go/identity"
	pb "iop/proto/iop"
)

// advice is what a refusal means, and who can do what about it.
type advice struct {
	level        doctor.Level
	text, remedy string
}

// refusals has a row for each reason that an Edge can have.
func refusals() map[pb.RegisterReason]advice {
	return map[pb.RegisterReason]advice{
		pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN: {doctor.Fail, "the Edge doesn't know this node's token, or it has expired",
			"at the Edge run iop-edge token new NAME, put the hash into its nodes and the token into the file that token: names"},
		pb.RegisterReason_REGISTER_REASON_NODE_DISABLED: {doctor.Fail, "the Edge knows this node, and has it disabled",
			"set enabled: true at the node's entry in the Edge's file; it reloads by itself"},
		pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH: {doctor.Fail, "token and certificate aren't of the same node, by the Edge's record",
			"use the certificate that was issued for this node (iop-edge ca inspect shows whose it is), or correct spiffe_id or revoked_serials in the node's record"},
		pb.RegisterReason_REGISTER_REASON_POP_FAILED: {doctor.Fail, "the node couldn't prove its recipient key",
			"bring both programs to the same version; if that doesn't help, it is a bug"},
		pb.RegisterReason_REGISTER_REASON_DUPLICATE_CONNECTION: {doctor.Warning, "another connection with this token is alive",
			"stop the other node, or give each machine a token of its own"},
		pb.RegisterReason_REGISTER_REASON_VERSION_UNSUPPORTED: {doctor.Fail, "node and Edge have no protocol version in common",
			"upgrade the older of the two"},
		pb.RegisterReason_REGISTER_REASON_PAYLOAD_FAILED: {doctor.Fail, "the Edge can't build what this node is to be told",
			"look at the Edge's log, and run iop-edge doctor there"},
		pb.RegisterReason_REGISTER_REASON_EDGE_DRAINING: {doctor.Warning, "the Edge is shutting down",
			"wait until it is back; the node comes back by itself"},
		pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT: {doctor.Warning, "the Edge was too busy to look at the registration in time",
			"try again; if it stays so, run iop-edge doctor at the Edge"},
	}
}

// explain says why an Edge wouldn't let this node in.
func (x *examination) explain(ctx context.Context, name, edge string, err error) doctor.Finding {
	var f *transport.RehearsalError
	if !errors.As(err, &f) {
		return doctor.Failed(name, "look at the Edge's log", "%v", err)
	}
	secured := "tls " + edge
	switch f.Fault {
	case transport.FaultRefused:
		if a, ok := refusals()[f.Reason]; ok {
			return doctor.Finding{Check: "token", Level: a.level, Text: a.text + " (" + f.Text + ")", Remedy: a.remedy}
		}
		return doctor.Failed("token", "look at the Edge's log; the Edge may be of a later version", "%s", f.Text)
	case transport.FaultEdge:
		return doctor.Failed(secured, "check edge_spiffe_id and ca: iop-edge ca inspect shows whose certificate each file holds; the Edge's log has its own; "+clockHint(),
			"the Edge isn't who it should be: %s", f.Text)
	case transport.FaultNode:
		return doctor.Failed(secured, "use the certificate that this Edge's CA issued for this node, and let the Edge's ca hold that CA; look at the Edge's log for its reason; "+clockHint(),
			"the Edge doesn't accept this node's certificate: %s", f.Text)
	case transport.FaultNotAnEdge:
		if f.TLS {
			return doctor.Failed(secured, "name the node port of an Edge in mode managed (listen.nodes) in edges; if the Edge is in mode dev, remove tls", "%s at %s", f.Text, edge)
		}
		return doctor.Failed(name, "name the node port of an Edge (listen.nodes) in edges; its HTTP port is another one", "%s at %s: it isn't the node port of an Edge", f.Text, edge)
	}
	return x.silent(ctx, name, edge, f)
}

// silent says what a connection without an answer may mean.
func (x *examination) silent(ctx context.Context, name, edge string, f *transport.RehearsalError) doctor.Finding {
	switch sniff(ctx, edge) {
	case speaksHTTP:
		return doctor.Failed(name, "name the node port of an Edge (listen.nodes) in edges; its HTTP port is another one", "a web server answers at %s: it isn't the node port of an Edge", edge)
	case speaksTLS:
		if x.cfg.TLS == nil {
			return doctor.Failed(name, "set tls: cert, key, ca and edge_spiffe_id (iop-edge ca issue makes the files)", "%s speaks TLS, so that an Edge there is in mode managed, and this node has no tls", edge)
		}
	}
	if f.Fault == transport.FaultSilent {
		return doctor.Failed(name, "see whether the Edge there hangs, and what its log says; or name the node port of an Edge (listen.nodes) in edges",
			"something listens at %s, and there was no answer in time", edge)
	}
	if f.TLS {
		return doctor.Failed("tls "+edge, "name the node port of an Edge in mode managed (listen.nodes) in edges; an Edge in mode dev closes what begins with TLS, too: then remove tls",
			"in the TLS handshake at %s %s", edge, f.Text)
	}
	if x.cfg.TLS == nil {
		return doctor.Failed(name, "name the node port of an Edge (listen.nodes) in edges; an Edge in mode managed closes what doesn't begin with TLS: then set tls",
			"%s at %s", f.Text, edge)
	}
	return doctor.Failed(name, "look at the Edge's log", "%s at %s after the TLS handshake", f.Text, edge)
}

// clockHint belongs to every refused certificate: none can be told from a wrong clock.
func clockHint() string {
	return "and see that the clock is right: it is " + time.Now().UTC().Format(time.RFC3339) + " here"
}

// speaks is what listens somewhere.
type speaks uint8

const (
	speaksOther speaks = iota // an Edge in mode dev, which closes what isn't its protocol, or nobody knows what
	speaksHTTP
	speaksTLS
)

// sniff finds out what listens at an address that doesn't answer as an Edge: a web server waits for the end of a head
// that never comes, and an Edge in mode managed says nothing to what doesn't begin with TLS.
func sniff(ctx context.Context, address string) speaks {
	if conn := knock(ctx, address); conn != nil {
		defer conn.Close()
		head := make([]byte, 5)
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: doctor\r\nConnection: close\r\n\r\n") // the answer tells
		if _, err := io.ReadFull(conn, head); err == nil && string(head) == "HTTP/" {
			return speaksHTTP
		}
	}
	if conn := knock(ctx, address); conn != nil {
		defer conn.Close()
		// Nothing is believed and nothing sent: only whether there is a TLS server is asked.
		met := false
		cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{identity.ALPN, "http/1.1"},
			VerifyConnection: func(tls.ConnectionState) error { met = true; return errors.New("seen") }}
		if err := tls.Client(conn, cfg).HandshakeContext(ctx); met || identity.Refused(err) {
			return speaksTLS
		}
	}
	return speaksOther
}

// knock connects, and gives what follows half of the time that is left.
func knock(ctx context.Context, address string) net.Conn {
	ctx, cancel := half(ctx)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil
	}
	end, _ := ctx.Deadline()
	_ = conn.SetDeadline(end)
	return conn
}
