package sim

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var (
	oneSeed = flag.Uint64("sim.seed", 0, "replay this seed and print its history")
	logs    = flag.Bool("sim.log", false, "with -sim.seed: print the programs' logs, too")
	seeds   = flag.Int("sim.seeds", 0, "how many fresh seeds; 0 = 1,000, or fewer where they are slow")
	from    = flag.Uint64("sim.from", 0, "the first of them; 0 = drawn")
	first   = flag.Bool("sim.first", false, "of a worker: stop at the first seed that finds something")
	tally   = flag.Bool("sim.tally", false, "of a worker: tell how much happened in each seed")
	count   = flag.Int("sim.count", 0, "of a worker: how many")
)

const (
	fresh     = 1000
	freshRace = 60 // the race detector makes each several times slower
	chunk     = 20 // seeds of one process
	chunkTime = 10 * time.Minute
)

// The invariants hold for fresh seeds, and for every seed that ever found something.
func TestSimulation(t *testing.T) {
	if *oneSeed != 0 || *count != 0 {
		t.Skip("one seed is replayed")
	}
	n := *seeds
	switch {
	case n > 0:
	case raceDetector || testing.Short():
		n = freshRace
	default:
		n = fresh
	}
	begin := *from
	if begin == 0 {
		begin = drawn(t)
	}
	var chunks []span
	for _, seed := range known(t) {
		chunks = append(chunks, span{seed, 1})
	}
	for i := 0; i < n; i += chunk {
		chunks = append(chunks, span{begin + uint64(i), min(chunk, n-i)})
	}
	t.Logf("%d fresh seeds from %d", n, begin)
	began := time.Now()
	results := work(t, chunks)
	t.Logf("%d seeds in %v, by %d workers", len(results), time.Since(began).Round(time.Millisecond), runtime.NumCPU())
	for _, r := range results {
		if r.wrong != "" {
			t.Fatalf("seed %d: %s\nreplay it: make sim SEED=%d", r.seed, r.wrong, r.seed)
		}
	}
}

// span is some seeds in a row.
type span struct {
	first uint64
	n     int
}

// drawn returns where fresh seeds begin: anywhere, for who asks for a number of them. Else they are fresh with every change
// of the code, and the same for the same code, so that what a run of the tests finds the next one finds again.
func drawn(t *testing.T) uint64 {
	t.Helper()
	sum := sha256.New()
	if *seeds > 0 {
		_, _ = io.CopyN(sum, rand.Reader, 8) // never fails
		return binary.LittleEndian.Uint64(sum.Sum(nil)) >> 32 << 16
	}
	for _, root := range []string{"../../apps", "../../packages", "."} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			sum.Write(source)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return binary.LittleEndian.Uint64(sum.Sum(nil)) >> 32 << 16
}

// known are the seeds that found something.
func known(t *testing.T) (list []uint64) {
	t.Helper()
	text, err := os.ReadFile("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		number, why, _ := strings.Cut(line, "#")
		if number = strings.TrimSpace(number); number == "" {
			continue
		}
		seed, err := strconv.ParseUint(number, 10, 64)
		if err != nil || strings.TrimSpace(why) == "" {
			t.Fatalf("seeds.txt: %q isn't a seed and what it found", line)
		}
		list = append(list, seed)
	}
	return list
}

// result is what a worker said of a seed.
type result struct {
	seed  uint64
	hash  string
	wrong string // "" = nothing
}

// work plays spans of seeds in processes of their own: a program that crashes takes only its process with it, and what a
// seed leaves behind in package-level pools meets few others.
func work(t *testing.T, spans []span) []result {
	t.Helper()
	var (
		mu   sync.Mutex
		all  []result
		todo = make(chan span)
		done sync.WaitGroup
	)
	for range runtime.NumCPU() {
		done.Go(func() {
			for s := range todo {
				found := workOn(t.Context(), s)
				mu.Lock()
				all = append(all, found...)
				mu.Unlock()
			}
		})
	}
	for _, s := range spans {
		todo <- s
		mu.Lock()
		bad := slices.ContainsFunc(all, func(r result) bool { return r.wrong != "" })
		mu.Unlock()
		if bad {
			break
		}
	}
	close(todo)
	done.Wait()
	slices.SortFunc(all, func(a, b result) int {
		return strings.Compare(fmt.Sprintf("%20d", a.seed), fmt.Sprintf("%20d", b.seed))
	})
	return all
}

// workOn plays one span in a process.
func workOn(ctx context.Context, s span) []result {
	ctx, cancel := context.WithTimeout(ctx, chunkTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestWorker$", "-test.count=1", "-test.timeout=0",
		"-sim.from="+strconv.FormatUint(s.first, 10), "-sim.count="+strconv.Itoa(s.n))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it tells where it stands
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	out, err := cmd.CombinedOutput()
	var found []result
	for line := range strings.Lines(string(out)) {
		if m := saidLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			seed, _ := strconv.ParseUint(m[1], 10, 64)
			found = append(found, result{seed: seed, hash: m[2], wrong: strings.TrimSpace(m[3])})
		}
	}
	if len(found) < s.n {
		next := s.first + uint64(len(found))
		found = append(found, result{seed: next, wrong: fmt.Sprintf("its process ended with %v\n%s", err, out)})
	}
	return found
}

var saidLine = regexp.MustCompile(`^played (\d+) ([0-9a-f]+)(.*)$`)

// TestWorker is the process of a worker.
func TestWorker(t *testing.T) {
	if *count == 0 {
		t.Skip("this isn't a worker")
	}
	runtime.GOMAXPROCS(1)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	dir := stateDir(t)
	for i := range *count {
		r := play(t, *from+uint64(i), dir, nil)
		fmt.Fprintf(out, "played %d %s %s\n", r.Seed, r.Hash, strings.Join(r.Breaches, "; "))
		if *first && len(r.Breaches) > 0 {
			return
		}
		if *tally {
			fmt.Fprintln(out, r.Stats)
		}
		out.Flush()
	}
}

// TestReplay plays one seed and prints what happened.
func TestReplay(t *testing.T) {
	if *oneSeed == 0 {
		t.Skip("no seed is to be replayed; make sim SEED=n does")
	}
	runtime.GOMAXPROCS(1)
	var out io.Writer
	if *logs {
		out = os.Stdout
	}
	r := play(t, *oneSeed, stateDir(t), out)
	r.Print(os.Stdout)
	for _, b := range r.Breaches {
		t.Error(b)
	}
}

// The same seed has the same history.
func TestSameSeedSameHistory(t *testing.T) {
	if *oneSeed != 0 || *count != 0 || raceDetector {
		t.Skip("one seed is replayed, or the race detector makes each slow")
	}
	var spans []span
	for i := range 4 {
		spans = append(spans, span{uint64(1 + 10*i), 10})
	}
	// A busy machine takes the processor from a goroutine in the middle of an instant, and where several runs go to the queue
	// in one instant their order may then be another. So a seed is tried again until it repeats itself.
	seen := map[uint64]map[string]bool{}
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		var differ []span
		for _, r := range work(t, spans) {
			if seen[r.seed] == nil {
				seen[r.seed] = map[string]bool{}
			}
			if !seen[r.seed][r.hash] {
				seen[r.seed][r.hash] = true
				differ = append(differ, span{r.seed, 1})
			}
		}
		if spans = differ; len(spans) == 0 {
			return
		}
	}
	t.Errorf("histories that don't repeat: %v", spans)
}

func play(t *testing.T, seed uint64, dir string, logs io.Writer) (r *Report) {
	for range 2 { // so that the multiplexer's timers of the bubble before are gone: into the pool's second half, and out
		runtime.GC()
	}
	synctest.Test(t, func(*testing.T) { r = Play(seed, dir, logs) })
	return r
}

// stateDir is where the edges of a worker keep what they keep: in memory where there is a place for it, or each seed
// would wait for a disk several times.
func stateDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "iop-sim-")
	if err != nil {
		dir = t.TempDir()
	} else {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	WriteIdentities(t, dir)
	return dir
}
