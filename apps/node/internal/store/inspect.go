package store

import (
	"context"
	"errors"
	"fmt"
)

// Health of a journal's file, as [Inspect] finds it.
const (
	FileSound   = "sound"
	FileDamaged = "damaged" // a node that starts sets it aside, and begins a fresh one
	FileUnfit   = "unfit"   // it can't be used, and a node that starts says so and ends
)

// Inspect looks through the journal at path as a node does when it starts, without changing it; a node may be writing
// it meanwhile. The error says what is wrong with a file that isn't sound. That there is a file is the caller's to see.
func Inspect(ctx context.Context, path string) (state string, err error) {
	r, err := OpenReader(ctx, path)
	if err != nil {
		if faultOf(err) == faultDamaged {
			return FileDamaged, err
		}
		return FileUnfit, err
	}
	defer r.Close()
	var verdict string
	if err := r.db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict); err != nil {
		if faultOf(err) == faultDamaged {
			return FileDamaged, fmt.Errorf("journal %s: %w", path, err)
		}
		return FileUnfit, fmt.Errorf("journal %s: %w", path, errors.Join(err, ctx.Err()))
	}
	if verdict != "ok" {
		return FileDamaged, fmt.Errorf("journal %s: quick_check: %s", path, cut(verdict))
	}
	return FileSound, nil
}
