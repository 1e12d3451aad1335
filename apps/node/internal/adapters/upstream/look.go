package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"iop/packages/go/execution"
)

// Look is [Client.Fetch] for the first question of a probe. A provider that answers is there, whatever it says, unless
// that is a redirect or an error of its own; reason says why it isn't there, and the answer is nil then.
func (c *Client) Look(ctx context.Context, path string, max int) (answer *Answer, reason string) {
	answer, err := c.Fetch(ctx, path, max)
	if err != nil {
		if f, ok := errors.AsType[*execution.Failure](err); ok {
			return nil, f.Text
		}
		return nil, "no answer in time to GET " + path
	}
	switch s := answer.Status; {
	case s == http.StatusServiceUnavailable:
		return nil, "provider is there but not ready (503), it may be loading its model"
	case s >= 500:
		return nil, fmt.Sprintf("provider answers %d to GET %s", s, path)
	case s >= 300 && s < 400:
		return nil, fmt.Sprintf("provider redirects (%d); set base_url to where it redirects to", s)
	}
	return answer, ""
}
