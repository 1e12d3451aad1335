package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Dial resolves an address and connects to it, and says in words what stands in the way. key is where the configuration
// has the address. The connection is nil unless the finding is OK.
func Dial(ctx context.Context, check, key, address string) (net.Conn, Finding) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		return conn, Well(check, "something answers there (%s)", conn.RemoteAddr())
	}
	text, remedy := explainDial(err, address, key)
	return nil, Failed(check, remedy, "%s", text)
}

// explainDial says what went wrong with a dial, and what helps.
func explainDial(err error, address, key string) (text, remedy string) {
	host, port, _ := net.SplitHostPort(address)
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "the name " + host + " doesn't resolve", "correct " + key + ", or add the name to DNS (or /etc/hosts)"
	case errors.As(err, &dns):
		return "the name " + host + " can't be looked up: " + strings.TrimPrefix(dns.Err, "lookup "), "look at this machine's resolver (/etc/resolv.conf), or give an address in " + key
	case errors.Is(err, unix.ECONNREFUSED):
		return address + " refuses connections: nothing listens there", "start what should listen there, or correct " + key + "; a firewall may refuse port " + port + ", too"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		return address + " doesn't answer: packets are lost on the way", "open port " + port + " in the firewalls between here and there, or correct " + key
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return address + " can't be reached: there is no way to that network", "look at this machine's network and routes, or correct " + key
	}
	return address + " can't be reached: " + err.Error(), "correct " + key + ", or look at the network"
}
