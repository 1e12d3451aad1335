package upstream_test

import (
	"errors"
	"testing"
	"time"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

// Whatever bytes a provider answers with, and then closes: no panic, an end, and an answer that is whole or a failure with
// a code of the provider's.
func FuzzExchange(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"usage\":{\"prompt_tokens\":7}}\n\n", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "HTTP/1.0 200\r\n\r\nx", "\x00\x00\x04", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
			x.Body()
			_, _ = x.Write(answer)
			x.Close()
		})
		r, err := adaptertest.Do(t, t.Context(), client(t, p.URL()), withTimers(chat(), time.Minute, time.Minute))
		if err == nil {
			if r.Status() < 200 {
				t.Fatalf("an answer with status %d", r.Status())
			}
			return
		}
		fault, ok := errors.AsType[*execution.Failure](err)
		if !ok || fault.NothingSent || fault.Code != execution.CodeUpstreamTruncated && fault.Code != execution.CodeUpstreamError {
			t.Fatalf("%#v", err)
		}
	})
}
