package program

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// The tightest group counts, also one that this process's group is in, in either version.
func TestMemoryLimitOfControlGroups(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		limit int64
		file  string
	}{
		"none":        {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 0, ""},
		"own":         {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1000\n", "sys/fs/cgroup/a/memory.max": "2000\n"}, 1000, "sys/fs/cgroup/a/b/memory.max"},
		"parent's":    {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "2000\n"}, 2000, "sys/fs/cgroup/a/memory.max"},
		"container":   {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "3000\n"}, 3000, "sys/fs/cgroup/memory.max"},
		"version 1":   {map[string]string{"proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "4000\n"}, 4000, "sys/fs/cgroup/memory/x/memory.limit_in_bytes"},
		"1, no limit": {map[string]string{"proc/self/cgroup": "4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, 0, ""},
		"no groups":   {nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range c.files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m := memoryIn(root)
			want := Memory{Limit: c.limit}
			if c.file != "" {
				want.Source = filepath.Join(root, c.file)
			}
			if m != want {
				t.Errorf("%+v, want %+v", m, want)
			}
		})
	}
	if m := MemoryLimit(); m.Limit <= 0 || m.Source == "" {
		t.Errorf("this machine: %+v", m)
	}
}

// A configuration that permits more than there is gets a warning with both figures; one that doesn't gets none.
func TestWarnMemory(t *testing.T) {
	var out bytes.Buffer
	WarnMemory(zerolog.New(&out), 1<<20, "lower it")
	if out.Len() > 0 {
		t.Errorf("1 MiB: %s", out.String())
	}
	WarnMemory(zerolog.New(&out), math.MaxInt64, "lower it")
	for _, want := range []string{`"level":"warn"`, `"limit_mib":`, `"permits_mib":`, `"source":`, "lower it"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s isn't in %s", want, out.String())
		}
	}
}
