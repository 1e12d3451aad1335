package upstream

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// ErrEnough is what a sink returns from Body that needs no more of it, as after a dialect's own end mark: the exchange
// succeeded, and nobody waits for a provider that doesn't end its answer.
var ErrEnough = errors.New("enough")

// endLimit is how long an answer's end is waited for when the sink has enough.
const endLimit = 100 * time.Millisecond

// readEnd reads the end of an answer that nobody needs more of, if it is about to come and the connection can be used
// again then.
func (x *exchange) readEnd(resp *http.Response) {
	x.unread = true
	if !x.keepable(resp) {
		return
	}
	x.conn.idle = x.pool.end
	var rest [512]byte
	if n, err := io.ReadFull(resp.Body, rest[:]); n < len(rest) && (err == io.EOF || err == io.ErrUnexpectedEOF) && !x.conn.cut() {
		x.unread = false
	}
}
