package program

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// handed starts this test binary as the program, through a shell that tells it, by its own process id, which sockets it
// was given: as a service manager does.
func handed(t *testing.T, names string, addr string, files ...*os.File) (stdout, stderr string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0], "activated", "--addr", addr, "--as-program")
	cmd.Env = append(os.Environ(), "LISTEN_FDS="+string(rune('0'+len(files))), "LISTEN_FDNAMES="+names)
	cmd.ExtraFiles = files
	var errors strings.Builder
	cmd.Stderr = &errors
	limit := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	out, _ := cmd.Output() // what it says is looked at
	return string(out), errors.String()
}

func socket(t *testing.T, addr string) (*net.TCPListener, *os.File) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); file.Close() })
	return l.(*net.TCPListener), file
}

// Who connected while no process was there is answered by the next one; and by the one after it.
func TestASocketOutlivesTheProcess(t *testing.T) {
	l, file := socket(t, "127.0.0.1:0")
	for _, want := range []string{"first", "second"} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, want+"\n"); err != nil {
			t.Fatal(err)
		}
		stdout, stderr := handed(t, "http", l.Addr().String(), file)
		if stdout != "here: true, for children: \nread "+want+"\n" || stderr != "" {
			t.Errorf("%q %q", stdout, stderr)
		}
		conn.Close()
	}
}

func TestSocketsThatNobodyWouldUseAreRefused(t *testing.T) {
	l, file := socket(t, "127.0.0.1:0")
	_, other := socket(t, "127.0.0.1:0")
	pipe, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer write.Close()
	for _, c := range []struct {
		names, addr, want string
		files             []*os.File
	}{
		{"iop-edge.socket", l.Addr().String(), `the socket "iop-edge.socket" of the service manager: nothing listens under this name; FileDescriptorName= must be one of http, nodes`, []*os.File{file}},
		{"http:http", l.Addr().String(), "there are two of them", []*os.File{file, other}},
		{"http:nodes:", l.Addr().String(), "2 sockets were handed over with 3 names", []*os.File{file, other}},
		{"http", "127.0.0.1:1", "the configuration says 127.0.0.1:1, and the socket that the service manager opened is " + l.Addr().String(), []*os.File{file}},
		{"http", "0.0.0.0:1", "the configuration says 0.0.0.0:1", []*os.File{file}},
		{"http", l.Addr().String(), "", []*os.File{pipe}},
	} {
		if stdout, stderr := handed(t, c.names, c.addr, c.files...); stdout != "" || stderr == "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s at %s: %q %q", c.names, c.addr, stdout, stderr)
		}
	}
}

func TestSameAddress(t *testing.T) {
	for _, c := range []struct {
		want, got string
		same      bool
	}{
		{":80", "[::]:80", true},
		{"0.0.0.0:80", "[::]:80", true},
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "127.0.0.1:81", false},
		{"127.0.0.1:80", "[::]:80", false},
		{"0.0.0.0:80", "127.0.0.1:80", false},
	} {
		want, err := net.ResolveTCPAddr("tcp", c.want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := net.ResolveTCPAddr("tcp", c.got)
		if err != nil {
			t.Fatal(err)
		}
		if sameAddress(want, got) != c.same {
			t.Errorf("%s and %s: %v", c.want, c.got, !c.same)
		}
	}
	if sameAddress(&net.TCPAddr{}, &net.UnixAddr{}) {
		t.Error("a path is a host and port")
	}
}

// What was handed to another process, as a parent, isn't taken.
func TestSocketsOfAnotherProcessAreLeft(t *testing.T) {
	t.Setenv("LISTEN_PID", "1")
	t.Setenv("LISTEN_FDS", "1")
	t.Setenv("LISTEN_FDNAMES", "http")
	s, err := TakeSockets("http")
	if err != nil || s.Has("http") {
		t.Error(s, err)
	}
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify("READY=1"); err != nil {
		t.Error(err)
	}
	dir, err := os.MkdirTemp("", "iop-n-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for name, address := range map[string]string{filepath.Join(dir, "s"): filepath.Join(dir, "s"), "@" + dir: "\x00" + dir} {
		manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("NOTIFY_SOCKET", name)
		if err := Notify("READY=1\nSTATUS=well"); err != nil {
			t.Error(err)
		}
		told := make([]byte, 100)
		n, err := manager.Read(told)
		if err != nil || string(told[:n]) != "READY=1\nSTATUS=well" {
			t.Errorf("%q %v", told[:n], err)
		}
		manager.Close()
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "nobody"))
	if err := Notify("READY=1"); err == nil {
		t.Error("nobody heard, and that was no error")
	}
}
