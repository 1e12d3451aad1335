package edge

import (
	"iop/apps/edge/internal/credential"
	"iop/packages/go/config"
)

// SlotCheck is what can be said of the key of a slot without showing it.
type SlotCheck struct {
	ID          string
	Source      string // its kind
	Length      int    // in bytes, 0 = there is none
	Fingerprint string // tells keys apart and nothing of them
}

// CheckSlots reads the source of every slot, as a start would, and changes nothing. The error says which can't be used,
// and holds nothing of a key; what could be read is returned all the same.
func CheckSlots(cfg *config.Edge) ([]SlotCheck, error) {
	if len(cfg.Slots) == 0 {
		return nil, nil
	}
	found, err := credential.Inspect(cfg)
	checks := make([]SlotCheck, len(found))
	for i, s := range found {
		checks[i] = SlotCheck{ID: s.ID, Source: s.SourceKind, Length: s.Length, Fingerprint: s.Fingerprint}
	}
	return checks, err
}
