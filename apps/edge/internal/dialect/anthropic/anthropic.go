// Package anthropic says what Anthropic's Messages API looks like as a run: its request, its answer as one object or as
// events, and its errors.
package anthropic

import (
	"iop/apps/edge/internal/dialect"
)

// Messages is POST /v1/messages.
func Messages() dialect.Endpoint { return messages{} }

type messages struct{}
