package program

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// FileLimit returns how many files this process may have open. The runtime has raised it to what the process may have.
func FileLimit() (limit uint64, err error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, err
	}
	return max(r.Cur, r.Max), nil
}

// Memory is how much memory this process may use, and what says so.
type Memory struct {
	Limit  int64  // bytes; 0 = nothing is known
	Source string // the file of a control group, or "the machine's memory"
}

// MemoryLimit finds the tightest limit: of the control groups that this process is in, and of the machine.
func MemoryLimit() Memory {
	m := memoryIn("/")
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return m
	}
	if total := int64(info.Totalram) * int64(info.Unit); total > 0 && (m.Limit == 0 || total < m.Limit) {
		m = Memory{Limit: total, Source: "the machine's memory"}
	}
	return m
}

// memoryIn reads the control groups under a root: version 2, and 1 where a machine still has it.
func memoryIn(root string) Memory {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return Memory{}
	}
	var m Memory
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[0] == "0":
			m.tighten(filepath.Join(root, "sys/fs/cgroup"), parts[2], "memory.max")
		case parts[1] == "memory":
			m.tighten(filepath.Join(root, "sys/fs/cgroup/memory"), parts[2], "memory.limit_in_bytes")
		}
	}
	return m
}

// tighten takes in the limits of a group and of those that it is in.
func (m *Memory) tighten(base, group, name string) {
	for at := filepath.Clean("/" + group); ; at = filepath.Dir(at) {
		path := filepath.Join(base, at, name)
		if text, err := os.ReadFile(path); err == nil {
			n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			// "max" is none; version 1 writes a number near the largest one.
			if err == nil && n > 0 && n < math.MaxInt64/2 && (m.Limit == 0 || n < m.Limit) {
				m.Limit, m.Source = n, path
			}
		}
		if at == "/" {
			return
		}
	}
}

// WarnMemory warns if this process may use less memory than its configuration permits itself, in bytes: then the
// kernel ends it when it is needed most. remedy says what to lower.
func WarnMemory(log zerolog.Logger, permits int64, remedy string) {
	const mib = 1 << 20
	if m := MemoryLimit(); m.Limit > 0 && m.Limit < permits {
		log.Warn().Int64("limit_mib", m.Limit/mib).Int64("permits_mib", permits/mib).Str("source", m.Source).
			Msg("less memory may be used than is needed at most, and beyond the limit the kernel ends the program; " + remedy)
	}
}
