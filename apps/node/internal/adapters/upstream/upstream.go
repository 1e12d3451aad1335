// Package upstream carries one HTTP request to a provider and its answer back, byte for byte: what every HTTP dialect
// of the node shares. It decides where a request goes (only the configuration names a host), what of it may go there,
// how long the provider may be silent, when a connection may be used again, and which failure an error is.
//
// It knows no dialect: which paths a dialect has, what a provider is asked about itself, and what a body means belong
// to the dialect's package. It reads bodies only beside the stream, for token counts.
//
// # Why not net/http's Transport
//
// The messages are net/http's (ReadResponse parses every answer); the connections are this package's own, because
// the rules for them can't be said to a Transport:
//
//   - Nothing is ever sent twice. A Transport repeats some requests by itself; here no code could.
//   - A connection that carried a chunked answer isn't used again on http://, and whether an answer will be chunked
//     isn't known when a Transport wants to be told. (llama-server closes after a stream, whatever its head says: of
//     200 streams in a row 12 failed.)
//   - An idle connection is looked at before it is used, so that a POST doesn't go to one that the provider closed.
//     (HT-14)
//   - It is known whether a byte may have reached the provider, which decides whether another node may try.
//   - The limits on silence are read deadlines, which run only while a read waits and cost no timer of their own.
//   - It takes no goroutine for a request whose body fits in one write.
//   - A key is written by itself, out of memory that is cleared, on one connection; no placeholder for it is needed.
//
// BenchmarkTunnel, 64 small requests at once, CPU of client and provider together: 22 to 27 µs a request, as much as a
// Transport that keeps its connections (25, with twice the allocations); one that doesn't, which would keep the first
// two rules, takes 105 to 113, more than half of what edge and node may take in all.
package upstream

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/httprules"
)

// The limits that no configuration changes.
const (
	// DefaultConnect bounds dial and TLS handshake together when the configuration doesn't.
	DefaultConnect = 5 * time.Second
	// MaxResponseHead is the largest head of an answer, interim answers included.
	MaxResponseHead = 64 << 10
	// MaxPiece is the largest piece of a body that a sink is given.
	MaxPiece = 16320

	// maxInterim is how many 1xx answers may come before the real one.
	maxInterim = 5
	// idleKeep… is how long an idle connection is kept. On http:// it begins with what serves the next request of a busy
	// moment and no other, and grows as the provider shows that it leaves idle connections alone: a dial costs some
	// 50 µs there, while a POST that crosses the provider's close is lost. (Of 500 POSTs to a provider that closes after
	// 5 ms, sent 5 ms apart, 62 were lost with 1 s from the start and no distrust, none like this.)
	idleKeepPlain = 3 * time.Millisecond
	idleKeepMost  = 100 * time.Millisecond
	idleKeepTLS   = 30 * time.Second
	// distrustFor is how long no connection is kept after one that the provider closed unannounced.
	distrustFor = time.Minute
	// earlyAnswer is how long an answer is still waited for after the provider stopped taking the request.
	earlyAnswer = time.Second
)

// Config is what a client needs.
type Config struct {
	BaseURL        string         // http:// or https://, with or without a path
	Paths          []string       // the dialect's own paths; one that ends in "/*" covers what is below
	AllowPaths     []string       // the configuration's, in the same form
	MaxConcurrency int            // idle connections kept at most; at least 1
	Connect        time.Duration  // 0 = DefaultConnect
	RootCAs        *x509.CertPool // nil = the system's
	Header         http.Header    // goes with the node's own questions (Fetch), as a version of the API
	Log            zerolog.Logger
}

// Client sends requests to one provider. Its methods may be called concurrently.
type Client struct {
	base   httprules.Base
	allow  allowList
	pool   *pool
	header http.Header // of Fetch
}

// New returns a client; it starts nothing and dials nothing. An error names the field of the configuration.
func New(cfg Config) (*Client, error) {
	if cfg.BaseURL == "" {
		return nil, errors.New("base_url: missing; name the provider's address, as in http://127.0.0.1:8000")
	}
	b, err := httprules.ParseBase(cfg.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("base_url: %w", err)
	}
	allow, err := newAllowList(cfg.Paths, cfg.AllowPaths)
	if err != nil {
		return nil, err
	}
	header := cfg.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Accept", "application/json")
	return &Client{base: b, allow: allow, pool: newPool(b, cfg), header: header}, nil
}

// Close closes the idle connections; those in use are closed when they would become idle.
func (c *Client) Close() { c.pool.close() }
