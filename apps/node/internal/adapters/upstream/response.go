package upstream

import (
	"net/http"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// readHead reads the head of the answer, past interim ones.
func (x *exchange) readHead() (*http.Response, error) {
	c := x.conn
	c.headLeft, c.idle, c.readErr = MaxResponseHead, 0, nil
	var asked *http.Request // nil is a GET to ReadResponse; only HEAD matters to it
	if x.req.Method == http.MethodHead {
		asked = &http.Request{Method: http.MethodHead}
	}
	for range maxInterim + 1 {
		resp, err := http.ReadResponse(c.br, asked)
		if err != nil {
			return nil, x.headFailure(err)
		}
		if text := refusal(resp); text != "" {
			return nil, execution.Failf(execution.CodeUpstreamError, execution.OriginProvider, "%s", text)
		}
		if resp.StatusCode >= 200 {
			x.beginBody()
			return resp, nil
		}
	}
	return nil, execution.Failf(execution.CodeUpstreamError, execution.OriginProvider,
		"provider sent more than %d interim answers", maxInterim)
}

// refusal says why an answer can't be passed on, "" if it can. (E38, E39)
func refusal(resp *http.Response) string {
	switch {
	case resp.ProtoMajor != 1:
		return "provider's answer isn't HTTP/1"
	case resp.StatusCode < 100 || resp.StatusCode > 599:
		return "provider's status isn't one of HTTP"
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return "provider wants to switch protocols"
	case httprules.CheckHeader(resp.Header) != nil:
		return "provider's answer has a broken header"
	}
	return ""
}

// beginBody changes the limits from the head's to the body's.
func (x *exchange) beginBody() {
	c := x.conn
	c.headLeft, c.idle = -1, x.req.Timers.Idle
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answered = true
	_ = c.SetReadDeadline(time.Time{})
}
