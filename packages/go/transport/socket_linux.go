package transport

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// notSent is how much unsent data the kernel keeps: more would sit before a control message.
const notSent = 32 << 10

// tuneSocket sets the options of a link's socket and returns the handle for inline flushes, nil where there can't be
// any: below TLS a raw write would break the records. Options are hints: a system without one still works.
func tuneSocket(c net.Conn) syscall.RawConn {
	sc, ok := bottom(c).(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	if t, ok := bottom(c).(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSent)
		})
	}
	if bottom(c) != c {
		return nil
	}
	return raw
}

// writeNow writes what the kernel takes at this moment. It is the function that RawConn.Write calls: true means done.
func (o *outbound) writeNow(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), o.inline)
		if err == syscall.EINTR {
			continue
		}
		o.inlineN, o.inlineErr = max(n, 0), err
		if err == syscall.EAGAIN {
			o.inlineErr = nil
		}
		return true
	}
}
