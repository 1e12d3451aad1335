package program

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"iop/packages/go/config"
)

// The test binary is also the program whose signals and exit codes are tested: this is its main.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "--as-program") {
		os.Exit(Main(testProgram()))
	}
	os.Exit(m.Run())
}

// testProgram has a command for each way to end.
func testProgram() *cobra.Command {
	root := &cobra.Command{Use: "prog"}
	root.PersistentFlags().Bool("as-program", false, "")
	add := func(use string, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
		cmd := &cobra.Command{Use: use, Args: Args(), RunE: run}
		root.AddCommand(cmd)
		return cmd
	}
	add("ok", func(*cobra.Command, []string) error { return nil })
	add("fail", func(*cobra.Command, []string) error { return errors.New("listen: address in use") })
	add("told", func(*cobra.Command, []string) error { return ExitWith(2) })
	add("well", func(*cobra.Command, []string) error { return ExitWith(0) })
	add("one", func(*cobra.Command, []string) error { return nil }).Args = Args("NODE")
	var file string
	ConfigFlag(add("load", func(*cobra.Command, []string) error {
		_, err := config.LoadEdge(file)
		return err
	}), &file)
	add("serve", func(*cobra.Command, []string) error { return serveForTest(true) })
	add("stubborn", func(*cobra.Command, []string) error { return serveForTest(false) })
	var addr string
	add("activated", func(*cobra.Command, []string) error { return readOne(addr) }).Flags().StringVar(&addr, "addr", "", "")
	root.AddCommand(Group("group", "holds one", &cobra.Command{Use: "ok", Run: func(*cobra.Command, []string) {}}), VersionCommand())
	return root
}

// serveForTest says what happens on standard output and drains until a byte arrives on standard input.
func serveForTest(heedsKill bool) error {
	log := zerolog.New(os.Stdout)
	RaiseFileLimit(log, 1<<40)
	return Serve(log, func(ctx context.Context, signals Signals) error {
		kill := signals.Kill
		fmt.Println("running")
		for running := true; running; {
			select {
			case <-ctx.Done():
				running = false
			case <-signals.Reload:
				fmt.Println("reloading")
			}
		}
		fmt.Println("draining")
		drained := make(chan struct{})
		go func() {
			_, _ = os.Stdin.Read(make([]byte, 1))
			close(drained)
		}()
		if !heedsKill {
			kill = nil
		}
		select {
		case <-drained:
			return nil
		case <-kill:
			return errors.New("killed")
		}
	})
}

// readOne takes the sockets that it was handed, and prints the line of the one connection that it accepts.
func readOne(addr string) error {
	sockets, err := TakeSockets("http", "nodes")
	if err != nil {
		return err
	}
	l, err := sockets.Listen("http", addr)
	if err != nil {
		return err
	}
	fmt.Printf("here: %t, for children: %s\n", sockets.Has("http"), os.Getenv("LISTEN_FDS"))
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	fmt.Printf("read %s", line)
	return err
}

func command(args ...string) *exec.Cmd {
	return exec.Command(os.Args[0], append(args, "--as-program")...)
}

func TestExitCodesAndMessages(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "edge.yaml")
	if err := os.WriteFile(bad, []byte("mod: dev\nlog: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"ok"}, 0, ""},
		{[]string{"group", "ok"}, 0, ""},
		{[]string{"group"}, 0, ""},
		{[]string{"version"}, 0, ""},
		{[]string{"fail"}, 1, "prog: listen: address in use\n"},
		{[]string{"told"}, 2, ""}, // it has said itself what there was to say
		{[]string{"well"}, 0, ""},
		{[]string{"load", "-c", bad}, 1, bad + `:1: mod: unknown key; did you mean "mode"?` + "\n" + bad +
			":2: log: must be a section with keys (level, format)\n"},
		{[]string{"load"}, 1, "no configuration file named; give one with -c FILE\n"},
		{[]string{"ok", "--flag"}, 2, "prog: unknown flag: --flag\nSee: prog ok --help\n"},
		{[]string{"ok", "more"}, 2, "prog: unexpected argument \"more\"\nSee: prog ok --help\n"},
		{[]string{"one"}, 2, "prog: NODE is missing\nSee: prog one --help\n"},
		{[]string{"group", "other"}, 2, "prog: unknown command \"other\" for \"prog group\"\nSee: prog group --help\n"},
		{[]string{"qwertz"}, 2, "prog: unknown command \"qwertz\" for \"prog\"\nSee: prog --help\n"},
	} {
		cmd := command(c.args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run() // the exit code says it
		if code := cmd.ProcessState.ExitCode(); code != c.code || stderr.String() != c.stderr {
			t.Errorf("%v: exit code %d, %q; want %d, %q", c.args, code, stderr.String(), c.code, c.stderr)
		}
	}
}

// process is a started program whose output is read line by line.
type process struct {
	*exec.Cmd
	lines  *bufio.Scanner
	stderr bytes.Buffer
	stdin  *os.File
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{Cmd: command(args...)}
	stdin, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Stdin, p.Cmd.Stderr, p.stdin, p.lines = stdin, &p.stderr, write, bufio.NewScanner(stdout)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	deadline := time.AfterFunc(30*time.Second, func() { _ = p.Process.Kill() })
	t.Cleanup(func() {
		deadline.Stop()
		_ = p.Process.Kill()
		_ = p.Wait()
		write.Close()
	})
	return p
}

// until reads lines up to one that holds part.
func (p *process) until(t *testing.T, part string) {
	t.Helper()
	for p.lines.Scan() {
		if strings.Contains(p.lines.Text(), part) {
			return
		}
	}
	t.Fatalf("it ended without %q: %s", part, p.stderr.String())
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (p *process) ends(t *testing.T, code int, stderr string) {
	t.Helper()
	for p.lines.Scan() { // to the end of its output
	}
	_ = p.Wait()
	if got := p.ProcessState.ExitCode(); got != code || p.stderr.String() != stderr {
		t.Errorf("exit code %d, %q; want %d, %q", got, p.stderr.String(), code, stderr)
	}
}

func TestFirstSignalDrains(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := start(t, "serve")
		p.until(t, "fewer files may be open than the configuration needs")
		p.until(t, "running")
		p.signal(t, syscall.SIGHUP)
		p.until(t, "reloading")
		p.signal(t, s)
		p.until(t, "draining")
		if _, err := p.stdin.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		p.ends(t, 0, "")
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	for _, name := range []string{"serve", "stubborn"} {
		p := start(t, name)
		p.until(t, "running")
		p.signal(t, syscall.SIGTERM)
		p.until(t, "draining")
		p.signal(t, syscall.SIGINT)
		p.until(t, "ending at once")
		p.ends(t, 1, "prog: ended at once by a second signal\n")
	}
}

func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "token")
	if err := CreateSecretFile(path, config.NewSecret("first")); err != nil {
		t.Fatal(err)
	}
	if err := CreateSecretFile(path, config.NewSecret("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a secret was replaced: %v", err)
	}
	check := func(path, content string, mode os.FileMode) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != content || info.Mode().Perm() != mode {
			t.Errorf("%s: %q, mode %o: %v", path, b, info.Mode().Perm(), err)
		}
	}
	check(path, "first\n", 0o600)
	hash := filepath.Join(dir, "new", "hash")
	for _, content := range []string{"a\n", "b\n"} {
		if err := WriteFile(hash, content, 0o644); err != nil {
			t.Fatal(err)
		}
		check(hash, content, 0o644)
	}
	if err := WriteFile(filepath.Join(path, "below", "a-file"), "", 0o644); err == nil || strings.Contains(err.Error(), "mkdir") {
		t.Errorf("%v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "new")); err != nil || len(entries) != 2 {
		t.Errorf("something is left behind: %v %v", entries, err)
	}
}
