//go:build e2e

package process

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"iop/e2e/procs"
)

// startActivated starts the site's edge with the callers' socket in its hands, as systemd does with iop-edge.socket.
func (s *site) startActivated(socket *os.File) {
	s.t.Helper()
	ctx := background(s.t)
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, program("iop-edge"), "serve", "-c", s.Path("edge.yaml"))
	cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES=http")
	cmd.ExtraFiles = []*os.File{socket}
	edge, err := procs.StartCmd(ctx, "edge", cmd)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Edge = edge
	said(s.t, s.Edge, "node ready", 1)
}

// The callers' port is held by somebody else: while one edge drains and until the next one is there, who connects waits,
// and what runs ends whole. Nobody is refused.
func TestCallersWaitWhileTheEdgeRestarts(t *testing.T) {
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 4}]"})
	if err := s.Edge.Stop(40 * time.Second); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", s.HTTP) // what the edge just had
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()

	s.startActivated(socket)
	request := chat("loopback", "loopback: tokens=3 delay=0s")
	half := begin(t, s.edgeSide, s.HTTP, "half a request", request[:20])
	holder := s.begin("what keeps the drain going", "loopback", "loopback: tokens=500 delay=50ms")
	holder.awaitText(t, "data:")
	running := s.begin("what runs", "loopback", "loopback: tokens=20 delay=50ms")
	running.awaitText(t, "data:")
	if err := s.Edge.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said(t, s.Edge, "the callers' socket is handed over", 1)
	// Who was accepted before gets an answer, too; whether this edge still takes the request is a matter of time.
	if _, err := io.WriteString(half.conn, request[20:]); err != nil {
		t.Error(err)
	}
	if half.await(t, limit); half.status != 200 && !strings.Contains(half.text(), "edge_draining") {
		t.Errorf("who was accepted before: %s", half)
	}
	holder.conn.Close()
	waiting := s.begin("who comes now", "loopback", "loopback: tokens=3 delay=0s")
	if running.await(t, limit); running.status != 200 || running.err != nil || !strings.Contains(running.text(), "[DONE]") {
		t.Errorf("what ran isn't whole: %s", running)
	}
	if code := s.Edge.ExitCode(); code != 0 {
		t.Errorf("the edge ended with %d", code)
	}
	select {
	case <-waiting.done:
		t.Fatalf("somebody answered though no edge is there: %s", waiting)
	default:
	}
	s.startActivated(socket)
	if waiting.await(t, limit); waiting.status != 200 || waiting.err != nil || !strings.Contains(waiting.text(), "[DONE]") {
		t.Errorf("who waited: %s", waiting)
	}
}

// A socket at another address than the configuration's isn't used: on loopback other things are permitted.
func TestAForeignSocketStopsTheStart(t *testing.T) {
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback}]"})
	if err := s.Edge.Stop(40 * time.Second); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, program("iop-edge"), "serve", "-c", s.Path("edge.yaml"))
	cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES=http")
	cmd.ExtraFiles = []*os.File{socket}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "listen.http: the configuration says "+s.HTTP+", and the socket") {
		t.Errorf("%v: %s", err, out)
	}
}
