package store

import (
	"errors"
	"io/fs"
	"syscall"

	sqlite3 "github.com/mattn/go-sqlite3"
)

// fault is the kind of trouble that a store has; code branches on it, its text is for people.
type fault uint8

const (
	faultOther    fault = iota
	faultFull           // no space, or no quota
	faultLocked         // another program holds the file
	faultReadOnly       // the file or its file system can't be written
	faultDamaged        // what is there is no database, or a broken one
	faultIO             // the disk
)

// String returns the kind in words.
func (f fault) String() string {
	switch f {
	case faultFull:
		return "the disk is full"
	case faultLocked:
		return "locked by another program"
	case faultReadOnly:
		return "read-only"
	case faultDamaged:
		return "damaged"
	case faultIO:
		return "i/o error"
	}
	return "unusable"
}

// errDamaged marks a file whose content can't be used, though SQLite itself reported no error.
var errDamaged = errors.New("damaged")

// faultOf tells what kind of trouble err is.
func faultOf(err error) fault {
	var own sqlite3.Error
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return faultFull
	case errors.Is(err, errDamaged):
		return faultDamaged
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return faultReadOnly
	case !errors.As(err, &own):
		return faultOther
	}
	if errno := own.SystemErrno; errno == syscall.ENOSPC || errno == syscall.EDQUOT {
		return faultFull
	}
	switch own.Code {
	case sqlite3.ErrFull:
		return faultFull
	case sqlite3.ErrBusy, sqlite3.ErrLocked:
		return faultLocked
	case sqlite3.ErrReadonly, sqlite3.ErrPerm:
		return faultReadOnly
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return faultDamaged
	case sqlite3.ErrIoErr, sqlite3.ErrCantOpen:
		return faultIO
	}
	return faultOther
}

// spoilsConnection reports whether the connection is better opened anew after such trouble: its cached pages, its
// locks or its transaction may be in any state.
func (f fault) spoilsConnection() bool {
	return f == faultDamaged || f == faultIO || f == faultOther
}
