package httpapi

import (
	"context"
	"crypto/tls"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// ServerConfig is what the caller listener's http.Server is built from.
type ServerConfig struct {
	Handler http.Handler
	// HeaderRead is how long a request's head may take. Default 10 s.
	HeaderRead time.Duration
	// KeepAlive is how long a connection may wait for its next request. Default 2 min.
	KeepAlive time.Duration
	// MaxHeader is the longest request head in bytes. Default 32 KiB.
	MaxHeader int64
	// TLS makes it an HTTPS server, which also speaks HTTP/2; serve it with ServeTLS(l, "", ""). Nil = plain.
	TLS *tls.Config
	Log zerolog.Logger
}

// NewServer returns a server without any limit on whole responses: generations take as long as they take (ST-16). It
// starts nothing.
func NewServer(cfg ServerConfig) *http.Server {
	if cfg.HeaderRead == 0 {
		cfg.HeaderRead = 10 * time.Second
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = 2 * time.Minute
	}
	return &http.Server{
		Handler:           cfg.Handler,
		TLSConfig:         cfg.TLS,
		ReadHeaderTimeout: cfg.HeaderRead,
		IdleTimeout:       cfg.KeepAlive,
		MaxHeaderBytes:    int(orDefault(cfg.MaxHeader, 32<<10)),
		ErrorLog:          stdlog.New(serverLog{cfg.Log}, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		// OPTIONS * would be answered with 200 before the handler sees it.
		DisableGeneralOptionsHandler: true,
	}
}

// LoadTLS reads the certificate of listen.http_tls.
func LoadTLS(certFile, keyFile string) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("listen.http_tls: certificate or key can't be used; both must be PEM files that belong together: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, nil
}

// serverLog takes what net/http has to say of connections: strangers' mistakes, mostly.
type serverLog struct{ log zerolog.Logger }

// Write implements io.Writer.
func (l serverLog) Write(p []byte) (int, error) {
	l.log.Debug().Str("error", strings.TrimSpace(string(p))).Msg("http server")
	return len(p), nil
}

type connKey struct{}

// resetConnection closes the connection of a request with a reset instead of an orderly end. TLS gets no close_notify:
// that would be an orderly end, too.
func resetConnection(ctx context.Context) {
	conn, ok := ctx.Value(connKey{}).(net.Conn)
	if !ok {
		return
	}
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		// Either may find the connection gone already, which is what they are for.
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
