package upstream

import "time"

// KeepIdle changes how long idle connections are kept, so that a test on a busy machine can count connections.
func (c *Client) KeepIdle(d time.Duration) { c.pool.keep = d }

// AwaitEnd changes how long the end of an answer is waited for when the sink has enough, for the same reason.
func (c *Client) AwaitEnd(d time.Duration) { c.pool.end = d }
