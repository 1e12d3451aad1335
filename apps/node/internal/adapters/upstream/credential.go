package upstream

import (
	"slices"

	"iop/packages/go/execution"
)

// This file shows a provider a key that nobody here has: it is opened while it is written, and nothing of it stays.
//
// A write to a TLS connection encrypts in a buffer that crypto/tls takes from a pool and, when it is too small, replaces
// by a larger one: the old one, with what was to be encrypted in it, is left to the garbage collector as it is. (Of 156
// lengths of head written together with a key, 62 left the key in memory, half of them beyond two collections.) So the
// head, which holds no secret, is written first and by itself, and the key in pieces that are no longer: for them the
// buffer that was just given back is long enough, and the ciphertext is written over the plaintext. Where the buffer is
// lost between two writes (a collection, another processor) the build with GOEXPERIMENT=runtimesecret erases what the
// key was in; see credentiallease.Shield. The rest of the head and the body follow when the page is clear again.
//
// The credential is used on one connection. It may be one that was kept: it was looked at a moment before, and a request
// without a key has the same chances on it; a handshake for each key would cost more than everything else together.
// When it turns out dead after Bind, the request fails, as every request does that TLS may have taken a byte of: it goes
// nowhere else, and the lease is used up. (E21)

// maxKeyPiece bounds a piece of a key: less than the smallest record that crypto/tls makes of a longer write, so that a
// head that is written in several records has left a buffer that is long enough.
const maxKeyPiece = 1 << 10

// appendCredential appends the key's header field up to the key.
func appendCredential(dst []byte, cred execution.Credential) []byte {
	name, prefix := cred.Field()
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	return append(dst, prefix...)
}

// noKeyInPlain refuses a key for a provider that isn't reached by TLS. The credential says why, since it is told where
// the request would have gone.
func (c *Client) noKeyInPlain(req *execution.TunnelRequest, path string) error {
	if err := req.Credential.Bind(c.base.Origin(), req.Method, path); err != nil {
		return err
	}
	f := execution.Failf(execution.CodeCredentialRefused, execution.OriginNode, "a key isn't sent to a provider without TLS")
	f.NothingSent = true
	return f
}

// sendWithKey is connect's write for a request with a key, and its last attempt. The exchange has its connection, and
// nothing was sent. An error means that nothing was and nothing will be.
func (x *exchange) sendWithKey() error {
	if err := x.req.Credential.Bind(x.pool.base.Origin(), x.req.Method, x.path); err != nil {
		return err
	}
	opened, err := x.writeWithKey()
	if !opened {
		return err
	}
	if err != nil {
		x.rest = 0
		x.failWrite(err)
		return nil // an answer may have come before the provider stopped reading
	}
	if x.rest == 0 {
		x.sent()
	}
	return nil
}

// writeWithKey writes what stands in out with the key in its place. It reports whether the key was opened: if it wasn't,
// no byte was written.
func (x *exchange) writeWithKey() (opened bool, err error) {
	head, rest := (*x.out)[:x.cut], (*x.out)[x.cut:]
	err = x.req.Credential.Send(func(key []byte) error {
		opened = true
		if _, err := x.write(head); err != nil {
			return err
		}
		for piece := range slices.Chunk(key, min(len(head), maxKeyPiece)) {
			if _, err := x.write(piece); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return opened, err
	case !opened:
		return false, execution.Failf(execution.CodeInternal, execution.OriginNode, "the request's key wasn't opened")
	}
	_, err = x.write(rest)
	return true, err
}
