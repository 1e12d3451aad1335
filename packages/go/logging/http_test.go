package logging

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
)

// scripted is a listener that fails or accepts as told.
type scripted struct {
	net.Listener
	results []error
}

func (s *scripted) Accept() (net.Conn, error) {
	err := s.results[0]
	s.results = s.results[1:]
	return nil, err
}

// Row 54 of the fault catalogue.
func TestAcceptingTellsOfEachRowOfFailuresOnce(t *testing.T) {
	var out strings.Builder
	full := &net.OpError{Op: "accept", Err: syscall.EMFILE}
	l := Accepting(&scripted{results: []error{full, full, nil, full, net.ErrClosed}}, "callers", zerolog.New(&out))
	for _, want := range []error{full, full, nil, full, net.ErrClosed} {
		if _, err := l.Accept(); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if got := strings.Count(out.String(), `"listener":"callers","message":"connections can't be accepted`); got != 2 || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("log:\n%s", &out)
	}
}

func TestHTTPErrorsAreLogLines(t *testing.T) {
	var out strings.Builder
	HTTPErrors(zerolog.New(&out)).Print("http: TLS handshake error from 1.2.3.4:5: EOF\n")
	if out.String() != `{"level":"debug","error":"http: TLS handshake error from 1.2.3.4:5: EOF","message":"http server"}`+"\n" {
		t.Errorf("%q", &out)
	}
}
