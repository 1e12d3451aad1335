package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

// output records each write.
type output struct {
	mu     sync.Mutex
	writes []string
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes = append(o.writes, string(p))
	return len(p), nil
}

func (o *output) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	writes := o.writes
	o.writes = nil
	return writes
}

func TestLinesAreWrittenTogetherAfterTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &output{}
		w := NewWriter(out)
		for range 2 { // the timer is armed anew
			fmt.Fprint(w, "a\n")
			time.Sleep(30 * time.Millisecond)
			fmt.Fprint(w, "b\n")
			time.Sleep(19 * time.Millisecond)
			synctest.Wait()
			if got := out.take(); got != nil {
				t.Fatalf("%q after 49 ms", got)
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if got := out.take(); len(got) != 1 || got[0] != "a\nb\n" {
				t.Fatalf("%q after 50 ms", got)
			}
			time.Sleep(time.Minute)
			if got := out.take(); got != nil {
				t.Fatalf("%q for nothing", got)
			}
		}
	})
}

func TestWarningsAndFullBuffersAreWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, format := range []string{"json", "console"} {
			out := &output{}
			log, w, err := New(Config{Format: format, Out: out})
			if err != nil {
				t.Fatal(err)
			}
			log.Info().Msg("one")
			log.Warn().Msg("two")
			synctest.Wait()
			if got := out.take(); len(got) != 1 || !strings.Contains(got[0], "one") || !strings.Contains(got[0], "two") {
				t.Fatalf("%s: %q", format, got)
			}
			log.Info().Str("x", strings.Repeat("x", fullAt)).Msg("big")
			synctest.Wait()
			if got := out.take(); len(got) != 1 || len(got[0]) < fullAt {
				t.Fatalf("%s: %d writes", format, len(got))
			}
			w.Close()
		}
	})
}

func TestStalledOutputBlocksNobodyAndIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, pipe := io.Pipe()
		w := NewWriter(pipe)
		line := strings.Repeat("x", 1023) + "\n"
		fmt.Fprint(w, line)
		time.Sleep(time.Second) // the first line is being written, for ever
		const more = 1500
		for range more {
			fmt.Fprint(w, line)
		}
		w.hurry(zerolog.ErrorLevel)
		start := time.Now()
		w.Close()
		if took := time.Since(start); took != closeWait {
			t.Errorf("closing took %s", took)
		}
		var got bytes.Buffer
		go func() {
			_, _ = io.Copy(&got, reader)
		}()
		synctest.Wait()
		kept := strings.Count(got.String(), line)
		want := fmt.Sprintf(`"lost":%d,`, more+1-kept)
		if kept != 1+limit/1024 || !strings.Contains(got.String(), want) {
			t.Errorf("%d lines kept, want %d and %s: %.200q", kept, 1+limit/1024, want, got.String()[kept*1024:])
		}
		pipe.Close()
	})
}

// A warning a line while the output stalls: each of them left a goroutine behind that waited for its turn.
func TestStalledOutputGathersNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, pipe := io.Pipe()
		log, w, err := New(Config{Format: "json", Out: pipe})
		if err != nil {
			t.Fatal(err)
		}
		before := runtime.NumGoroutine()
		for range 200 {
			log.Warn().Msg("the output stalls")
			log.Info().Str("x", strings.Repeat("x", fullAt)).Msg("so does a line that fills the buffer")
			time.Sleep(delay)
			synctest.Wait()
		}
		if n := runtime.NumGoroutine() - before; n > 2 {
			t.Errorf("%d goroutines wait for the output", n)
		}
		reader.Close()
		w.Close()
	})
}

func TestCloseWritesTheRestAndLaterLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &output{}
		log, w, err := New(Config{Out: out})
		if err != nil {
			t.Fatal(err)
		}
		log.Info().Msg("last")
		w.Close()
		if got := strings.Join(out.take(), ""); !strings.Contains(got, `"message":"last"`) {
			t.Errorf("%q", got)
		}
		log.Info().Msg("after")
		log.Error().Msg("after that")
		if got := out.take(); len(got) != 2 {
			t.Errorf("%q", got)
		}
		w.Close()
	})
}

func TestConcurrentLinesStayWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &output{}
		log, w, err := New(Config{Out: out, Level: "debug"})
		if err != nil {
			t.Fatal(err)
		}
		const writers, each = 8, 200
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for j := range each {
					log.Debug().Int("writer", i).Int("line", j).Msg("x")
					if j%50 == 0 {
						log.Warn().Int("writer", i).Int("line", -1).Msg("y")
					}
				}
			})
		}
		wg.Wait()
		w.Close()
		next := make([]int, writers)
		for line := range strings.Lines(strings.Join(out.take(), "")) {
			var got struct{ Writer, Line int }
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if got.Line < 0 {
				continue
			}
			if got.Line != next[got.Writer] {
				t.Fatalf("writer %d: line %d, want %d", got.Writer, got.Line, next[got.Writer])
			}
			next[got.Writer]++
		}
		for i, n := range next {
			if n != each {
				t.Errorf("writer %d: %d lines", i, n)
			}
		}
	})
}

func TestFormats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock of a bubble starts at 2000-01-01
		for _, c := range []struct{ format, want string }{
			{"json", `{"level":"info","run_id":"r1","time":"2000-01-01T00:00:00.000Z","message":"hello"}` + "\n"},
			{"auto", `{"level":"info","run_id":"r1","time":"2000-01-01T00:00:00.000Z","message":"hello"}` + "\n"},
			{"console", time.Now().Local().Format("15:04:05.000") + " INF hello run_id=r1\n"},
		} {
			out := &output{}
			log, w, err := New(Config{Format: c.format, Out: out})
			if err != nil {
				t.Fatal(err)
			}
			log.Debug().Msg("not at info")
			log.Info().Str("run_id", "r1").Msg("hello")
			w.Close()
			if got := strings.Join(out.take(), ""); got != c.want {
				t.Errorf("%s: got %q, want %q", c.format, got, c.want)
			}
		}
	})
}

func TestNewRefusesWords(t *testing.T) {
	for _, cfg := range []Config{{Level: "loud"}, {Level: "disabled"}, {Format: "xml"}} {
		if _, _, err := New(cfg); err == nil || errors.Is(err, os.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func BenchmarkLine(b *testing.B) {
	log, w, err := New(Config{Out: io.Discard})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	b.ReportAllocs()
	for b.Loop() {
		log.Info().Str("run_id", "r1").Str("node_id", "n1").Int("status", 200).Dur("duration", time.Second).Msg("request")
	}
}
