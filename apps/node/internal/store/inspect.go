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
		return stateOf(err), err
	}
	defer r.Close()
	if err := r.inspect(ctx); err != nil {
		return stateOf(err), fmt.Errorf("journal %s: %w", path, errors.Join(err, ctx.Err()))
	}
	return FileSound, nil
}

func (r *Reader) inspect(ctx context.Context) error {
	var verdict string
	if err := r.db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: quick_check: %s", errDamaged, cut(verdict))
	}
	row, err := r.db.PrepareContext(ctx, replaceRow) // it isn't run: only whether the columns are there is asked
	if err != nil {
		return err
	}
	return row.Close()
}

// stateOf says what a start would make of a file with such trouble.
func stateOf(err error) string {
	if faultOf(err) == faultDamaged || isLogicError(err) || errors.Is(err, errNotOurs) {
		return FileDamaged
	}
	return FileUnfit
}
