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
	if err != nil {
		return []doctor.Finding{doctor.Failed("slots", "look at state_dir and at the sources of the slots", "they can't be looked at: %v", err)}
	}
	var found []doctor.Finding
	for i := range list {
		found = append(found, slot(&list[i]))
	}
	return found
}

// slot judges one slot. What it shows of the key is its length only.
func slot(s *credential.SlotStatus) doctor.Finding {
	check := "slot " + s.ID
	switch {
	case s.State == credential.StateActive && s.Length > 0 && s.Reason == "":
		return doctor.Well(check, "active, revision %d, a key of %d bytes from %s for %s", s.Revision, s.Length, s.SourceKind, s.Origin)
	case s.State == credential.StateActive && s.Length > 0:
		return doctor.Warn(check, "correct its source", "active, but %s", s.Reason)
	case s.State == credential.StateActive:
		return doctor.Failed(check, "put the key where its source says (mode 600, this program's user), or correct the source", "it has no key: %s", s.Reason)
	}
	return doctor.Warn(check, "iop-edge ctl slots enable "+s.ID+" if it is to be used; a revoked one needs a new key", "it is %s, so that routes with it fail: %s", s.State, s.Reason)
}
