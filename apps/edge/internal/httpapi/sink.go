package httpapi

import (
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// sink writes a provider's response to the caller. It implements service.Sink.
//
// The limit of a write is armed at most once in idle/64, since SetWriteDeadline costs more than a small write's share
// of the work, and outside a write nothing looks at it: on HTTP/1 a deadline that passes between two writes has no
// effect. HTTP/2 would end the stream, so it is taken back there after each write.
type sink struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	idle time.Duration
	h2   bool
	old  bool // HTTP/1.0: a response without length ends with the connection
	head bool // the request is HEAD

	// owned by the goroutine that drives the call
	armed   time.Time
	begun   bool
	status  int   // that went out, 0 = none
	silent  bool  // the status has no body
	length  int64 // declared by the provider, -1 = none
	written int64

	// The watcher of the caller reads these.
	deadline atomic.Int64 // of the write that is going on, in Unix nanoseconds; 0 = none
	whole    atomic.Bool  // the last byte that the provider declared is being written, or was
	// raw is the connection below, for responses that can't be cut in any other way.
	reset func()
}

func newSink(w http.ResponseWriter, r *http.Request, idle time.Duration) *sink {
	s := &sink{w: w, rc: http.NewResponseController(w), idle: idle, length: -1,
		h2: r.ProtoMajor == 2, old: !r.ProtoAtLeast(1, 1), head: r.Method == http.MethodHead}
	s.reset = func() { resetConnection(r.Context()) }
	// What an earlier response on this connection has left.
	_ = s.rc.SetWriteDeadline(time.Time{})
	return s
}

// Placed implements service.Sink.
func (s *sink) Placed(at service.Placement) {
	h := s.w.Header()
	h["X-Iop-Node"] = []string{at.Node}
	h["X-Iop-Queue-Ms"] = []string{strconv.FormatInt(at.Queued.Milliseconds(), 10)}
	if at.Position > 0 {
		h["X-Iop-Queue-Position"] = []string{strconv.Itoa(at.Position)}
	}
}

// Head implements service.Sink.
func (s *sink) Head(status int, header http.Header) error {
	if status < 200 || status > 999 {
		return execution.Failf(execution.CodeProtocol, execution.OriginNode, "response status %d can't be passed on", status)
	}
	length, ok := contentLength(header)
	if !ok {
		return execution.Failf(execution.CodeProtocol, execution.OriginProvider, "response with a bad Content-Length")
	}
	s.silent = s.head || status == http.StatusNoContent || status == http.StatusNotModified
	out := s.w.Header()
	s.copyHeader(out, header)
	if length >= 0 && status != http.StatusNoContent {
		out["Content-Length"] = []string{strconv.FormatInt(length, 10)}
		s.length = length
	} else if !s.silent && !s.h2 && !s.old {
		// net/http gives a short response that is whole at once a length that the provider didn't (ST-11).
		out["Transfer-Encoding"] = []string{"chunked"}
	}
	if _, typed := out["Content-Type"]; !typed {
		out["Content-Type"] = nil // net/http would look into the body and add one
	}
	s.begun, s.status = true, status
	s.whole.Store(s.silent || s.length == 0)
	s.w.WriteHeader(status)
	return nil
}

// copyHeader copies what may pass, each field once. It uses in up.
func (s *sink) copyHeader(out, in http.Header) {
	httprules.HopByHop(in)
	for name, values := range in {
		key := http.CanonicalHeaderKey(name)
		if endsHere(key) || !validFieldName(name) {
			continue
		}
		if key != "Vary" { // the one field that the edge may have set, too, and that adds up
			out[key] = nil
		}
		for _, value := range values {
			if validFieldValue(value) {
				out[key] = append(out[key], value)
			}
		}
	}
	if id := in.Get("X-Request-Id"); id != "" && validFieldValue(id) {
		// The caller's X-Request-Id is the edge's; a provider's support asks for its own.
		out.Set("X-IOP-Provider-Request-Id", id)
	}
}

// contentLength returns the length that a head declares, -1 = none.
func contentLength(h http.Header) (int64, bool) {
	values := h["Content-Length"]
	if len(values) == 0 {
		return -1, true
	}
	for _, value := range values[1:] {
		if value != values[0] {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(values[0]), 10, 63)
	return int64(n), err == nil
}

// Body implements service.Sink. An empty piece with flush sends the head.
func (s *sink) Body(p []byte, flush bool) error {
	if s.silent {
		return nil
	}
	if s.length >= 0 && s.written+int64(len(p)) > s.length {
		return execution.Failf(execution.CodeProtocol, execution.OriginProvider,
			"response body: more than the %d bytes that its head declared", s.length)
	}
	s.arm()
	if s.length >= 0 && s.written+int64(len(p)) == s.length {
		s.whole.Store(true)
	}
	if len(p) > 0 {
		n, err := s.w.Write(p)
		s.written += int64(n)
		if err != nil {
			return s.failed(err)
		}
	}
	if flush {
		if err := s.rc.Flush(); err != nil {
			return s.failed(err)
		}
	}
	s.disarm()
	return nil
}

// End implements service.Sink. What net/http still has to write after it has the limit of the last write.
func (s *sink) End() error {
	if !s.silent && s.length >= 0 && s.written != s.length {
		return execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider,
			"response body: %d of the %d bytes that its head declared", s.written, s.length)
	}
	s.arm()
	s.deadline.Store(0)
	return nil
}

// arm gives the write that comes next its limit.
func (s *sink) arm() {
	now := time.Now()
	if s.h2 || now.Sub(s.armed) >= s.idle/64 {
		s.armed = now
		// Without deadlines (a test's recorder) there is nothing to bound.
		_ = s.rc.SetWriteDeadline(now.Add(s.idle))
	}
	s.deadline.Store(s.armed.Add(s.idle).UnixNano())
}

func (s *sink) disarm() {
	s.deadline.Store(0)
	if s.h2 {
		_ = s.rc.SetWriteDeadline(time.Time{})
	}
}

// failed says whose fault an error of a write is.
func (s *sink) failed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || s.gone() == execution.CauseClientSlow {
		return execution.Failf(execution.CodeClientSlow, execution.OriginCaller, "the caller took nothing for %s", s.idle)
	}
	return execution.Failf(execution.CodeClientGone, execution.OriginCaller, "the caller left during its response")
}

// gone says why the caller's connection ended: net/http reports a write that ran into its limit as a caller that left,
// and does so before the write returns. It may be called from any goroutine.
func (s *sink) gone() execution.CancelCause {
	if d := s.deadline.Load(); d != 0 && time.Now().UnixNano() >= d {
		return execution.CauseClientSlow
	}
	return execution.CauseClientGone
}

// abort ends a response that is not whole so that the caller can tell, and doesn't return. What was written arrives
// before. A response of unknown length to an HTTP/1.0 caller ends with its connection, and a plain close would be a
// clean end: it is reset.
func (s *sink) abort() {
	if s.begun {
		s.arm()
		// A caller that takes nothing more is aborted all the same.
		_ = s.rc.Flush()
		if s.old && s.length < 0 {
			s.reset()
		}
	}
	panic(http.ErrAbortHandler)
}
