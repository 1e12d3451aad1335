package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// Server does the edge's side of the handshake on a bare connection and returns who the node is. Whoever shows no
// certificate, or one that isn't an identity of this trust domain by a trusted CA, gets no further. heard is called when
// the peer has begun to speak TLS; nil is nobody. conn stays the caller's to close.
//
// An error that is about the peer's certificate has an [*Error] in it; see [NotTLS] and [Refused] for others.
func (s *Source) Server(ctx context.Context, conn net.Conn, heard func()) (*tls.Conn, *Peer, error) {
	m := s.Current()
	cfg := m.common()
	cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, m.roots
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if heard != nil {
			heard()
		}
		return nil, nil
	}
	var peer *Peer
	cfg.VerifyConnection = func(cs tls.ConnectionState) (err error) {
		peer, err = s.accept(m, cs, x509.ExtKeyUsageClientAuth)
		return err
	}
	c := tls.Server(conn, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, classify(err)
	}
	peer.session, peer.Shown = c.ConnectionState(), m
	return c, peer, nil
}

// Client does the node's side, and accepts only the program with the ID edge. Its nil error doesn't mean that the edge
// has accepted the node: TLS 1.3 tells that with the first read; see [Refused].
func (s *Source) Client(ctx context.Context, conn net.Conn, edge ID) (*tls.Conn, *Peer, error) {
	m := s.Current()
	cfg := m.common()
	// A SPIFFE certificate names no host, so the library's own check can't be used. VerifyConnection does the whole of
	// it, and is called for every handshake.
	cfg.InsecureSkipVerify = true
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.cert, nil }
	var peer *Peer
	cfg.VerifyConnection = func(cs tls.ConnectionState) (err error) {
		if peer, err = s.accept(m, cs, x509.ExtKeyUsageServerAuth); err != nil {
			return err
		}
		if peer.ID != edge {
			return &Error{Text: fmt.Sprintf("the edge is %s, where %s is due", peer.ID, edge)}
		}
		return nil
	}
	c := tls.Client(conn, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, classify(err)
	}
	peer.session, peer.Shown = c.ConnectionState(), m
	return c, peer, nil
}

// common is what both sides insist on.
func (m *Material) common() *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{m.cert},
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{ALPN},
		// A resumed session would skip the certificates.
		SessionTicketsDisabled: true,
		// The link writes batches: small records would only cost.
		DynamicRecordSizingDisabled: true,
	}
}

// accept checks a finished handshake.
func (s *Source) accept(m *Material, cs tls.ConnectionState, usage x509.ExtKeyUsage) (*Peer, error) {
	switch {
	case cs.DidResume:
		return nil, &Error{Text: "the session was resumed, so that no certificate was shown"}
	case cs.NegotiatedProtocol != ALPN:
		return nil, &Error{Text: "the peer doesn't speak " + ALPN + " (ALPN)"}
	}
	p, err := m.verify(cs.PeerCertificates, usage, time.Now())
	if err != nil {
		return nil, err
	}
	if p.ID.TrustDomain() != s.cfg.TrustDomain {
		return nil, &Error{Text: fmt.Sprintf("%s isn't in the trust domain %s", p.ID, s.cfg.TrustDomain)}
	}
	return p, nil
}

// classify gives the library's own refusal of a certificate our type.
func classify(err error) error {
	if refused := new(tls.CertificateVerificationError); errors.As(err, &refused) {
		return &Error{Text: "no trusted CA vouches for the peer's certificate", Err: refused.Err}
	}
	return err
}

// NotTLS reports whether a handshake failed because the peer speaks something else: plaintext, for one.
func NotTLS(err error) bool { return errors.As(err, new(tls.RecordHeaderError)) }

// Refused reports whether err is the peer's word that it doesn't accept this side: a TLS alert. In TLS 1.3 a client
// meets it at its first read, with a handshake that seemed to have succeeded.
func Refused(err error) bool {
	op := new(net.OpError)
	return errors.As(err, &op) && op.Op == "remote error"
}
