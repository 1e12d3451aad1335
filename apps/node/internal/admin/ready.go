package admin

import (
	"net/http"

	"iop/apps/node/internal/transport"
)

// ready answers whether an Edge sends this node work: 200 when one does, else 503 with the state of each link.
func ready(links func() []transport.Status) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		text := ""
		for _, l := range links() {
			if l.State == transport.StateServing {
				_, _ = w.Write([]byte("ready at " + l.Edge + "\n"))
				return
			}
			text += l.Edge + ": " + string(l.State) + "\n"
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(text))
	}
}
