package service

import (
	"net/http"
	"time"
	"unicode/utf8"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// nodesToSay reports whether a code is one that a node may end an execution with: it tells what became of it there. The
// others are the edge's alone: who may ask and for what, where it goes, and what callers do. A node or its provider that
// says one of them breaks the contract, or it could tell a caller that its key is wrong, its model unknown or its limit
// reached, or have its connection cut.
func nodesToSay(code execution.Code) bool {
	switch code {
	case execution.CodeUnauthorized, execution.CodeUnknownModel, execution.CodeUnknownAdapter, execution.CodeLimitExceeded,
		execution.CodeNoNode, execution.CodeQueueFull, execution.CodeQueueTimeout, execution.CodeEdgeDraining,
		execution.CodeDispatchTimeout, execution.CodeClientGone, execution.CodeClientSlow,
		execution.CodeCredentialUnavailable, execution.CodeCredentialReflected:
		return false
	}
	return true
}

// notTheirs is the failure of an execution that a node ended with a code which isn't its to say.
func notTheirs(code execution.Code) *execution.Failure {
	return protocolFailure("the node ended the execution with " + code.String() + ", which isn't a node's to say")
}

// failureOf translates a node's failure. One without a code, or with one that isn't a node's to say, breaks the
// protocol; what it says then isn't passed on.
func failureOf(m *pb.Failure) *execution.Failure {
	code := m.GetCode()
	if code <= 0 || code > 255 {
		return protocolFailure("the node reported a failure without a code")
	}
	if !nodesToSay(execution.Code(code)) {
		return notTheirs(execution.Code(code))
	}
	f := &execution.Failure{
		Code:           execution.Code(code),
		Origin:         execution.Origin(m.GetOrigin()),
		Text:           m.GetText(),
		UpstreamStatus: int(m.GetUpstreamStatus()),
		RetryAfter:     max(0, time.Duration(m.GetRetryAfterMs())*time.Millisecond),
		NothingSent:    m.GetNothingSent(),
		Lease:          execution.LeaseRefusal{Reason: numbered(int64(m.GetLeaseReason())), Field: numbered(int64(m.GetLeaseField()))},
	}
	if f.Code == execution.CodeCredentialRefused {
		f.Text = "the node didn't use the provider key that it was lent; the edge's events say why" // not for callers
	}
	if f.Origin != execution.OriginProvider {
		f.Origin = execution.OriginNode
	}
	f.Text = shorten(f.Text, execution.MaxFailureText)
	return f
}

// numbered is a number of a closed list that fits a byte; 0 is unknown.
func numbered(n int64) uint8 {
	if n < 0 || n > 255 {
		return 0
	}
	return uint8(n)
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
