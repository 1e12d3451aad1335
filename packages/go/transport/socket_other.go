//go:build !linux

package transport

import (
	"net"
	"syscall"
)

// tuneSocket sets TCP_NODELAY; inline flushes and the limit of unsent bytes are for Linux only.
func tuneSocket(c net.Conn) syscall.RawConn {
	if t, ok := bottom(c).(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
	}
	return nil
}

func (o *outbound) writeNow(uintptr) bool { return true }
