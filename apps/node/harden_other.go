//go:build !linux

package node

import "errors"

// shut can't do it here.
func shut() error { return errors.ErrUnsupported }
