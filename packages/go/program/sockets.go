package program

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstSocket is the number of the first descriptor that a service manager hands over, by systemd's protocol.
const firstSocket = 3

// Sockets are the listening sockets that a service manager opened for this process (systemd's socket activation), by
// their names (FileDescriptorName=). They outlive the process: whoever connects while none runs waits for the next one.
type Sockets struct {
	byName map[string]net.Listener
}

// TakeSockets takes the sockets that were handed to this process, if any were, which the environment's LISTEN_PID,
// LISTEN_FDS and LISTEN_FDNAMES say. Call it once, before anything else is opened. known are the names that the program
// has a use for: another one is an error, as is the same name twice, since nobody would answer there.
func TakeSockets(known ...string) (*Sockets, error) {
	s := &Sockets{byName: map[string]net.Listener{}}
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	if pid != strconv.Itoa(os.Getpid()) {
		return s, nil
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} { // they aren't for children
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > 64 {
		return nil, fmt.Errorf("LISTEN_FDS is %q, which isn't a number of sockets", count)
	}
	if len(names) != n {
		return nil, fmt.Errorf("%d sockets were handed over with %d names; give each a FileDescriptorName=", n, len(names))
	}
	for i, name := range names {
		if err := s.take(firstSocket+i, name, known); err != nil {
			s.Close()
			return nil, fmt.Errorf("the socket %q of the service manager: %w", name, err)
		}
	}
	return s, nil
}

func (s *Sockets) take(fd int, name string, known []string) error {
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), name)
	defer file.Close() // the listener has a descriptor of its own
	if !slices.Contains(known, name) {
		return fmt.Errorf("nothing listens under this name; FileDescriptorName= must be one of %s", strings.Join(known, ", "))
	}
	if s.byName[name] != nil {
		return errors.New("there are two of them; one socket unit has one ListenStream=")
	}
	l, err := net.FileListener(file)
	if err != nil {
		return err
	}
	s.byName[name] = l
	return nil
}

// Has reports whether a socket of that name was handed over.
func (s *Sockets) Has(name string) bool { return s.byName[name] != nil }

// Listen returns the socket of that name, or opens a listener where none was handed over. A socket at another address
// than addr (host:port) is refused: what a configuration permits depends on the address, and a reader of it must not be
// misled.
func (s *Sockets) Listen(name, addr string) (net.Listener, error) {
	l := s.byName[name]
	if l == nil {
		return net.Listen("tcp", addr)
	}
	if want, err := net.ResolveTCPAddr("tcp", addr); err != nil || !sameAddress(want, l.Addr()) {
		return nil, fmt.Errorf("the configuration says %s, and the socket that the service manager opened is %s; make ListenStream= of the socket unit the same", addr, l.Addr())
	}
	return l, nil
}

// sameAddress takes all ways to write "every address of this machine" for the same.
func sameAddress(want *net.TCPAddr, got net.Addr) bool {
	tcp, ok := got.(*net.TCPAddr)
	if !ok || want.Port != tcp.Port {
		return false
	}
	every := func(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
	return every(want.IP) && every(tcp.IP) || want.IP.Equal(tcp.IP)
}

// Close closes what was handed over, as far as this process has it.
func (s *Sockets) Close() {
	for _, l := range s.byName {
		l.Close()
	}
}
