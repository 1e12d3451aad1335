package logging

import (
	"errors"
	stdlog "log"
	"net"
	"strings"

	"github.com/rs/zerolog"
)

// HTTPErrors returns what net/http's servers write their complaints to: strangers' mistakes, mostly, so that they are
// worth a debug line each.
func HTTPErrors(log zerolog.Logger) *stdlog.Logger { return stdlog.New(httpErrors{log}, "", 0) }

type httpErrors struct{ log zerolog.Logger }

// Write implements io.Writer.
func (e httpErrors) Write(p []byte) (int, error) {
	e.log.Debug().Str("error", strings.TrimSpace(string(p))).Msg("http server")
	return len(p), nil
}

// Accepting returns l, telling in the log when connections can't be accepted, once for a row of failures: descriptors
// don't come back by logging. net/http waits and tries again by itself. name is what the listener is for.
func Accepting(l net.Listener, name string, log zerolog.Logger) net.Listener {
	return &accepting{Listener: l, name: name, log: log}
}

// accepting is a listener on which one goroutine accepts.
type accepting struct {
	net.Listener
	name    string
	log     zerolog.Logger
	failing bool
}

// Accept implements net.Listener.
func (a *accepting) Accept() (net.Conn, error) {
	c, err := a.Listener.Accept()
	if err != nil && !a.failing && !errors.Is(err, net.ErrClosed) {
		a.log.Error().Err(err).Str("listener", a.name).Msg("connections can't be accepted; raise the limit of open files (ulimit -n)")
	}
	a.failing = err != nil
	return c, err
}
