package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strconv"
)

// Reader lists a journal from another process than the node's; the node may run meanwhile.
type Reader struct {
	path string
	db   *sql.DB
}

// errNotOurs is what a reader says of a file that is nobody's, or has lost its table.
var errNotOurs = errors.New("it isn't a journal of iop-node")

// OpenReader opens the journal at path for reading only. It neither makes a file nor sweeps or repairs one.
func OpenReader(ctx context.Context, path string) (*Reader, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("journal %s: there is none; a node makes it when it starts", path)
	} else if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	options := url.Values{
		"mode": {"ro"}, "cache": {"private"}, "_query_only": {"1"},
		"_busy_timeout": {strconv.Itoa(int(2 * busyTimeout.Milliseconds()))},
	}
	r := &Reader{path, connect(fileURI(path, options))}
	err := r.check(ctx)
	if kind := faultOf(err); (kind == faultIO || kind == faultReadOnly) && !exists(path+"-wal") {
		// A directory that can't be written, and a journal that was closed properly: nothing changes it now.
		_ = r.db.Close()
		options.Set("immutable", "1")
		r.db = connect(fileURI(path, options))
		err = r.check(ctx)
	}
	if err != nil {
		_ = r.db.Close()
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	return r, nil
}

func (r *Reader) check(ctx context.Context) error {
	id, err := identify(ctx, r.db)
	if err == nil {
		err = id.check()
	}
	if err == nil && !id.ours {
		err = errNotOurs
	}
	return err
}

// List returns rows, the latest first.
func (r *Reader) List(ctx context.Context, q Query) ([]Row, error) {
	rows, err := q.run(ctx, r.db)
	if err != nil {
		return nil, fmt.Errorf("list journal %s: %w", r.path, err)
	}
	return rows, nil
}

// Close closes the file.
func (r *Reader) Close() error { return r.db.Close() }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
