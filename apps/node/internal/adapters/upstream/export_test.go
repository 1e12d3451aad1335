package upstream

import "time"

// KeepIdle changes how long idle connections are kept, so that a test on a busy machine can count connections.
func (c *Client) KeepIdle(d time.Duration) { c.pool.keep = d }
