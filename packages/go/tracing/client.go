package tracing

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// quiet is the time between two lines of the log about a receiver.
	quiet = time.Minute
	// firstPause is the time from a failed try to the next; it doubles.
	firstPause = 500 * time.Millisecond
	// maxAnswer bounds what is read of a receiver's answer.
	maxAnswer = 64 << 10
)

// client posts spans to a receiver as OTLP over HTTP. It implements otlptrace.Client. (The one of OpenTelemetry brings
// gRPC along, which would make both programs half as large again.)
type client struct {
	cfg   *Config
	http  *http.Client
	log   zerolog.Logger
	ctx   context.Context // ends with abort: nothing is delivered any more
	abort context.CancelFunc
	last  chan struct{} // closed by hurry: nothing is tried again
	hurry func()

	mu   sync.Mutex
	told time.Time // when the log last heard of a failure
	lost int       // spans, since then
}

func newClient(cfg *Config, log zerolog.Logger) *client {
	c := &client{cfg: cfg, log: log, last: make(chan struct{})}
	c.hurry = sync.OnceFunc(func() { close(c.last) })
	c.ctx, c.abort = context.WithCancel(context.Background())
	c.http = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: defaultTimeout}).DialContext,
			TLSClientConfig: tlsOf(cfg), ForceAttemptHTTP2: true, MaxIdleConns: 2, IdleConnTimeout: time.Minute,
		},
		// The headers have keys: they go to the configured place and to no other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

func tlsOf(cfg *Config) *tls.Config {
	if cfg.TLS == nil {
		return nil
	}
	return cfg.TLS.Clone()
}

// Start implements otlptrace.Client.
func (c *client) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *client) Stop(context.Context) error {
	c.abort()
	c.http.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It never fails: what can't be delivered is lost, and the log says so. An
// error would be handed to a handler that the whole process shares.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.cfg.Timeout, defaultTimeout))
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	if err := c.deliver(ctx, spans); err != nil {
		c.complain(err, count(spans))
	}
	return nil
}

func count(spans []*tracepb.ResourceSpans) (n int) {
	for _, of := range spans {
		for _, in := range of.GetScopeSpans() {
			n += len(in.GetSpans())
		}
	}
	return n
}

// complain writes what went wrong to the log, once a minute at most.
func (c *client) complain(err error, lost int) {
	c.mu.Lock()
	c.lost += lost
	lost = c.lost
	silent := !c.told.IsZero() && time.Since(c.told) < quiet
	if !silent {
		c.told, c.lost = time.Now(), 0
	}
	c.mu.Unlock()
	if !silent {
		c.log.Warn().Err(err).Int("spans_lost", lost).Msg("traces can't be delivered; requests aren't concerned")
	}
}

// deliver posts a batch, and again while the receiver says that it may take it later, or isn't there.
func (c *client) deliver(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// The same bytes as an ExportTraceServiceRequest: both have the list as their field 1.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	if c.cfg.Gzip {
		body = compress(body)
	}
	for pause := firstPause; ; pause *= 2 {
		later, err := c.post(ctx, body)
		if err == nil || !later.again {
			return err
		}
		select {
		case <-ctx.Done():
			return err // why the last try failed says more than that there is no time for another
		case <-c.last:
			return err
		case <-time.After(max(pause, later.after)):
		}
	}
}

// compress returns p in gzip. Writes to memory don't fail.
func compress(p []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(p)
	_ = w.Close()
	return out.Bytes()
}

// later says whether a failed try is worth another, and when.
type later struct {
	again bool
	after time.Duration
}

// post makes one try.
func (c *client) post(ctx context.Context, body []byte) (later, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.Endpoint, bytes.NewReader(body))
	if err != nil {
		return later{}, err
	}
	for name, value := range c.cfg.Headers {
		r.Header.Set(name, value.Reveal())
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("User-Agent", "iop")
	if c.cfg.Gzip {
		r.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return later{again: ctx.Err() == nil}, err
	}
	defer resp.Body.Close()
	// What a receiver says isn't logged: it may be anything.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode >= 200 && resp.StatusCode <= 299 {
		return later{}, nil
	}
	err = fmt.Errorf("the receiver answered with status %d", resp.StatusCode)
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16) // a date isn't understood
		return later{again: true, after: time.Duration(seconds) * time.Second}, err
	}
	return later{}, err
}
