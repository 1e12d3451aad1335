package diagnose

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"iop/apps/edge/internal/credential"
	"iop/packages/go/doctor"
)

// generations looks at the file that keeps connection generations from going backwards.
func generations(dir string) []doctor.Finding {
	const check = "state_dir"
	path := filepath.Join(dir, "generation.json")
	data, err := os.ReadFile(path)
	var kept struct {
		Reserved uint64 `json:"reserved_generation"`
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return nil
	case err != nil:
		return []doctor.Finding{doctor.Failed(check, "let the program's user read it", "%v", err)}
	case json.Unmarshal(data, &kept) != nil || kept.Reserved == 0 || kept.Reserved >= math.MaxInt64:
		return []doctor.Finding{doctor.Failed(check, "put it back from a backup of state_dir; a file that is removed begins anew, and then restart every node, too",
			"%s doesn't say which connection generations were used, so that the Edge doesn't start", path)}
	}
	return nil
}

// slots reads the source of every slot as the Edge does when it starts.
func (x *examination) slots(context.Context) []doctor.Finding {
	if len(x.cfg.Slots) == 0 {
		return nil
	}
	list, err := credential.Inspect(x.cfg)
	var found []doctor.Finding
	for i := range list {
		found = append(found, slot(&list[i]))
	}
	if err != nil && faults(err) > keyless(list) { // those without a key have been told
		found = append(found, doctor.Failed("slots", "put slots.json of state_dir back from a backup, or look at who may read it", "what is known of them can't be used: %v", err))
	}
	return found
}

// slot judges one slot. What it shows of the key is its length only.
func slot(s *credential.SlotStatus) doctor.Finding {
	check := "slot " + s.ID
	switch {
	case s.State == credential.StateRevoked:
		return doctor.Warn(check, "put a new key into its source", "routes with it fail: %s", s.Reason)
	case s.Length == 0:
		return doctor.Failed(check, "put the key where its source says (mode 600, this program's user), or correct the source: the Edge doesn't start without it",
			"its source (%s) yields no key: %s", s.SourceKind, s.Reason)
	case s.State != credential.StateActive:
		return doctor.Warn(check, "iop-edge ctl slot enable "+s.ID+" if it is to be used again", "routes with it fail: %s", s.Reason)
	}
	return doctor.Well(check, "active, revision %d, a key of %d bytes from its source (%s) for %s", s.Revision, s.Length, s.SourceKind, s.Origin)
}

// faults counts what was joined into an error.
func faults(err error) int {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return len(joined.Unwrap())
	}
	return 1
}

// keyless counts the slots without a key.
func keyless(list []credential.SlotStatus) (n int) {
	for i := range list {
		if list[i].Length == 0 {
			n++
		}
	}
	return n
}
