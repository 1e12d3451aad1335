package program

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// Notify tells the service manager (systemd, Type=notify) how this process is: "READY=1", "STOPPING=1", "STATUS=text". It
// does nothing where nobody asked to be told, which the environment's NOTIFY_SOCKET says. An error means that it couldn't
// be told; the program works all the same.
func Notify(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	if strings.HasPrefix(name, "@") { // a name without a file
		name = "\x00" + name[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}
