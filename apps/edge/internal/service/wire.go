package service

import (
	"net/http"
	"time"
	"unicode/utf8"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// failureOf translates a node's failure. One without a code breaks the protocol; what it says then isn't passed on.
func failureOf(m *pb.Failure) *execution.Failure {
	code := m.GetCode()
	if code <= 0 || code > 255 {
		return protocolFailure("the node reported a failure without a code")
	}
	f := &execution.Failure{
		Code:           execution.Code(code),
		Origin:         execution.Origin(m.GetOrigin()),
		Text:           m.GetText(),
		UpstreamStatus: int(m.GetUpstreamStatus()),
		RetryAfter:     max(0, time.Duration(m.GetRetryAfterMs())*time.Millisecond),
		NothingSent:    m.GetNothingSent(),
	}
	if f.Origin != execution.OriginProvider {
		f.Origin = execution.OriginNode
	}
	f.Text = shorten(f.Text, execution.MaxFailureText)
	return f
}

// shorten cuts s to at most n bytes, on a character's border.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func usageOf(m *pb.Usage) execution.Usage {
	if m == nil {
		return execution.Usage{}
	}
	return execution.Usage{Input: m.Input, Output: m.Output, Cached: m.Cached, Reasoning: m.Reasoning}
}

// headerOf builds a response's header. The values share one array, as net/http's own parser does it.
func headerOf(list []*pb.Header) http.Header {
	h := make(http.Header, len(list))
	values := make([]string, len(list))
	for i, field := range list {
		name := http.CanonicalHeaderKey(field.GetName())
		values[i] = string(field.GetValue())
		if have := h[name]; have != nil {
			h[name] = append(have, values[i])
			continue
		}
		h[name] = values[i : i+1 : i+1]
	}
	return h
}

// headersOf is the other direction. The messages and their values lie in two arrays.
func headersOf(h http.Header) []*pb.Header {
	fields, size := 0, 0
	for _, values := range h {
		fields += len(values)
		for _, value := range values {
			size += len(value)
		}
	}
	messages, list, bytes := make([]pb.Header, fields), make([]*pb.Header, 0, fields), make([]byte, 0, size)
	for name, values := range h {
		for _, value := range values {
			m := &messages[len(list)]
			start := len(bytes)
			bytes = append(bytes, value...)
			m.Name, m.Value = name, bytes[start:len(bytes):len(bytes)]
			list = append(list, m)
		}
	}
	return list
}
