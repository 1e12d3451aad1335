package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	sqlite3 "github.com/mattn/go-sqlite3"

	"iop/packages/go/execution"
)

const (
	// busyTimeout is how long SQLite waits for another program's lock before the journal calls itself degraded.
	busyTimeout = time.Second
	// walLimit is what a reset leaves of the write-ahead log on disk.
	walLimit = 4 << 20
)

// file is one open database file with the one connection to it. Its methods may be called from any goroutine; the
// connection serves one at a time.
type file struct {
	db  *sql.DB
	row *sql.Stmt // replaceRow

	// owned by the writer
	rows   int64 // how many there are
	values []any // of one row, used again
}

// contents is what openFile found.
type contents struct {
	lastID      int64
	interrupted int64
	unreported  []Row // oldest first
}

// openFile opens src, makes sure that it is a sound journal of this version, and ends what was running in it with
// an id below own. ctx bounds the checks only.
func openFile(ctx context.Context, src source, own int64, now time.Time) (*file, contents, error) {
	made, err := prepare(src.path)
	if err != nil {
		return nil, contents{}, err
	}
	f := &file{db: connect(src.uri)}
	var found contents
	if err = f.check(ctx); err == nil {
		found, err = f.load(own, now)
	}
	if err != nil {
		_ = f.db.Close()
		if made { // or the next try would take the empty file for a damaged one
			removeFiles(src.path)
		}
		return nil, contents{}, err
	}
	return f, found, nil
}

// prepare makes an empty file where none is. A file that is there but empty has lost what it had.
func prepare(path string) (made bool, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) // SQLite gives the log the same rights
		if err != nil {
			return false, err
		}
		return true, f.Close()
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, errors.New("it isn't a regular file")
	case info.Size() == 0:
		return false, fmt.Errorf("%w: the file is empty", errDamaged)
	}
	return false, nil
}

// connector opens connections of the journal's kind. It stands in the place of a registered driver, since it needs a
// hook for what a DSN can't say.
type connector struct {
	uri    string
	driver *sqlite3.SQLiteDriver
}

func (c connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.uri) }
func (c connector) Driver() driver.Driver                        { return c.driver }

// connect returns a pool of exactly one connection: with a shared cache a second one meets "table is locked" on every
// other statement (SQ-01), and a pool that replaced it would lose its settings (SQ-04). Nothing is opened yet.
//
// In WAL mode a commit is safe from a crash of this process once it is written. synchronous=NORMAL, SQLite's usual
// choice there, keeps the file sound over a power cut but may lose the commits since the last checkpoint; FULL would
// pay fifty fsyncs a second for rows of executions that the same power cut has ended anyway.
func connect(uri string) *sql.DB {
	db := sql.OpenDB(connector{uri, &sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
		_, err := c.Exec(fmt.Sprintf(`PRAGMA journal_size_limit = %d`, walLimit), nil)
		return err
	}}})
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	return db
}

// check finds out whether the database is sound and ours, and brings it to this version.
func (f *file) check(ctx context.Context) error {
	var verdict, mode string
	if err := f.db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: quick_check: %s", errDamaged, cut(verdict))
	}
	id, err := identify(ctx, f.db)
	if err != nil {
		return err
	}
	if err := id.check(); err != nil {
		return err
	}
	if err := f.db.QueryRowContext(ctx, `PRAGMA journal_mode = WAL`).Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("its file system can't do write-ahead logging (SQLite chose %s); put data_dir on a local disk", mode)
	}
	err = id.migrate(f.db)
	if err == nil {
		f.row, err = f.db.Prepare(replaceRow)
	}
	if isLogicError(err) {
		return fmt.Errorf("%w: %w", errDamaged, err) // it says that it has a table, or columns, that it doesn't have
	}
	return err
}

// load sweeps, and reads what the journal goes on from.
func (f *file) load(own int64, now time.Time) (found contents, err error) {
	swept, err := f.db.Exec(sweep, now.UnixMilli(), own)
	if err != nil {
		return found, err
	}
	found.interrupted, _ = swept.RowsAffected()
	if err := f.db.QueryRow(countRows).Scan(&f.rows, &found.lastID); err != nil {
		return found, err
	}
	found.unreported, err = query(context.Background(), f.db, listUnreported, maxUnreported)
	for i, j := 0, len(found.unreported)-1; i < j; i, j = i+1, j-1 {
		found.unreported[i], found.unreported[j] = found.unreported[j], found.unreported[i]
	}
	return found, err
}

// write stores rows, of which fresh are new to the file, and deletes up to prune old ones, all in one transaction.
// No context reaches SQLite: an interrupt may hit the wrong statement and leave the connection in any state (SQ-06).
func (f *file) write(rows []Row, fresh, prune int64) (pruned int64, err error) {
	tx, err := f.db.Begin()
	if err != nil {
		return 0, err
	}
	row := tx.Stmt(f.row)
	for i := range rows {
		f.values = appendValues(f.values[:0], &rows[i])
		if _, err := row.Exec(f.values...); err != nil {
			return 0, errors.Join(err, tx.Rollback())
		}
	}
	if prune > 0 {
		result, err := tx.Exec(pruneCount, prune)
		if err != nil {
			return 0, errors.Join(err, tx.Rollback())
		}
		pruned, _ = result.RowsAffected()
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	f.rows += fresh - pruned
	return pruned, nil
}

// prune deletes up to limit rows that were created before cutoff, and counts what is left.
func (f *file) prune(cutoff time.Time, limit int) (pruned int64, err error) {
	result, err := f.db.Exec(pruneAge, cutoff.UnixMilli(), limit)
	if err != nil {
		return 0, err
	}
	pruned, _ = result.RowsAffected()
	var last int64
	return pruned, f.db.QueryRow(countRows).Scan(&f.rows, &last)
}

// checkpoint moves the write-ahead log into the database and truncates it. done is false when a reader is in the way.
func (f *file) checkpoint() (done bool, err error) {
	var busy, frames, moved int64
	err = f.db.QueryRow(`PRAGMA wal_checkpoint(TRUNCATE)`).Scan(&busy, &frames, &moved)
	return busy == 0, err
}

// probe does what every later write will need: a commit, and moving it into the database.
func (f *file) probe() error {
	if _, err := f.db.Exec(fmt.Sprintf(`PRAGMA user_version = %d`, len(schema()))); err != nil {
		return err
	}
	_, err := f.db.Exec(`PRAGMA wal_checkpoint(PASSIVE)`)
	return err
}

// list waits for the connection as long as ctx lasts; the query itself isn't interrupted.
func (f *file) list(ctx context.Context, q Query) ([]Row, error) {
	conn, err := f.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return q.run(context.WithoutCancel(ctx), conn)
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (q Query) run(ctx context.Context, db querier) ([]Row, error) {
	since := int64(math.MinInt64)
	if !q.Since.IsZero() {
		since = q.Since.UnixMilli()
	}
	return query(ctx, db, listRows, string(q.Status), since, q.limit())
}

func query(ctx context.Context, db querier, statement string, args ...any) ([]Row, error) {
	found, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var rows []Row
	for found.Next() {
		row, err := scanRow(found)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, found.Err()
}

// appendValues appends r's values in the order of columns.
func appendValues(to []any, r *Row) []any {
	return append(to, r.ID, r.Edge, r.RunID, int64(r.Attempt), int64(r.Generation), r.Kind.String(), r.Adapter, r.Target,
		r.SessionID, r.Background, r.Created.UnixMilli(), string(r.Status), millis(r.Started), millis(r.Ended), int64(r.Code),
		count(r.Usage.Input), count(r.Usage.Output), count(r.Usage.Cached), count(r.Usage.Reasoning),
		r.BytesIn, r.BytesOut, r.Reported)
}

func scanRow(from *sql.Rows) (r Row, err error) {
	var kind string
	var created, generation int64
	var started, ended *int64
	err = from.Scan(&r.ID, &r.Edge, &r.RunID, &r.Attempt, &generation, &kind, &r.Adapter, &r.Target,
		&r.SessionID, &r.Background, &created, &r.Status, &started, &ended, &r.Code,
		&r.Usage.Input, &r.Usage.Output, &r.Usage.Cached, &r.Usage.Reasoning,
		&r.BytesIn, &r.BytesOut, &r.Reported)
	r.Generation, r.Created, r.Started, r.Ended = uint64(generation), time.UnixMilli(created), fromMillis(started), fromMillis(ended)
	for _, k := range []execution.Kind{execution.KindRun, execution.KindTunnel} {
		if k.String() == kind {
			r.Kind = k
		}
	}
	return r, err
}

// millis is NULL for no time.
func millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

func fromMillis(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return time.UnixMilli(*ms)
}

// count is NULL for an unknown count.
func count(n *int64) any {
	if n == nil {
		return nil
	}
	return *n
}
