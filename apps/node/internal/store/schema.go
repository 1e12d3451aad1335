package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	sqlite3 "github.com/mattn/go-sqlite3"
)

// applicationID marks a database as a journal of iop-node: "IOP1".
const applicationID = 0x494F5031

// schema returns the steps that lead from one schema version to the next: the file's user_version is the number of
// steps that it has seen. A step, once released, never changes.
//
// There is no index beside the primary key: rows are written all day and read seldom, and every reader that matters
// (the list, retention) goes along the primary key, which ascends with time.
func schema() []string {
	return []string{
		`CREATE TABLE executions (
			id                    INTEGER PRIMARY KEY,
			edge                  TEXT NOT NULL,
			run_id                TEXT NOT NULL,
			attempt               INTEGER NOT NULL,
			connection_generation INTEGER NOT NULL,
			kind                  TEXT NOT NULL,
			adapter               TEXT NOT NULL,
			target                TEXT NOT NULL,
			session_id            TEXT NOT NULL,
			background            INTEGER NOT NULL,
			created_ms            INTEGER NOT NULL,
			status                TEXT NOT NULL,
			started_ms            INTEGER,
			ended_ms              INTEGER,
			code                  INTEGER NOT NULL, -- execution.Code; 0 = none
			input_tokens          INTEGER,          -- NULL = unknown, which isn't 0; the next three too
			output_tokens         INTEGER,
			cached_tokens         INTEGER,
			reasoning_tokens      INTEGER,
			bytes_in              INTEGER NOT NULL,
			bytes_out             INTEGER NOT NULL,
			reported              INTEGER NOT NULL
		) STRICT`,
	}
}

// identity is what a database says of itself.
type identity struct {
	application int64
	version     int
	ours        bool // it has the journal's table
	empty       bool // it has no table at all
}

func identify(ctx context.Context, db *sql.DB) (identity, error) {
	var id identity
	err := errors.Join(
		db.QueryRowContext(ctx, `PRAGMA application_id`).Scan(&id.application),
		db.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&id.version),
		db.QueryRowContext(ctx, `SELECT count(*) = 0, coalesce(max(name = 'executions'), 0) FROM sqlite_schema`).Scan(&id.empty, &id.ours),
	)
	return id, err
}

// check refuses a database that isn't this program's to change. Neither refusal is damage: the file stays where it is.
func (id identity) check() error {
	known := len(schema())
	switch {
	case !id.empty && !id.ours && id.application != applicationID:
		return errors.New("it is a database of another program; name another file")
	case id.version > known:
		// A downgrade. The older program can't know what the newer one's columns mean, and must not guess.
		return fmt.Errorf("it was written by a newer iop-node (schema %d, this one knows %d); start that version again, "+
			"or move the file away and go on without its history", id.version, known)
	}
	return nil
}

// migrate brings the schema to this program's version, all steps in one transaction.
func (id identity) migrate(db *sql.DB) error {
	steps := schema()
	if id.version == len(steps) && id.application == applicationID {
		return nil
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	for _, step := range steps[max(id.version, 0):] {
		if _, err := tx.Exec(step); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	_, err = tx.Exec(fmt.Sprintf(`PRAGMA user_version = %d; PRAGMA application_id = %d`, len(steps), applicationID))
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// columns are the columns of a row in the order in which row.go's values are bound and scanned.
const columns = `id, edge, run_id, attempt, connection_generation, kind, adapter, target, session_id, background,
	created_ms, status, started_ms, ended_ms, code, input_tokens, output_tokens, cached_tokens, reasoning_tokens,
	bytes_in, bytes_out, reported`

const (
	// replaceRow writes a row whole. Writing it twice is harmless, which a retry after a commit of unknown outcome needs.
	replaceRow = `INSERT OR REPLACE INTO executions (` + columns + `) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`

	// pruneCount deletes the oldest rows that nobody waits for: what runs and what an edge has yet to acknowledge stays.
	pruneCount = `DELETE FROM executions WHERE id IN (SELECT id FROM executions
		WHERE status <> 'running' AND (background = 0 OR reported = 1) ORDER BY id LIMIT ?)`

	// pruneAge deletes what lies before the first row that is young enough, so it reads no further than that row.
	pruneAge = `DELETE FROM executions WHERE id IN (SELECT id FROM executions
		WHERE id < coalesce((SELECT id FROM executions WHERE created_ms >= ?1 ORDER BY id LIMIT 1), 9223372036854775807)
		AND status <> 'running' ORDER BY id LIMIT ?2)`

	// sweep ends what an earlier process left running. Its end is the moment at which that was noticed.
	sweep = `UPDATE executions SET status = 'interrupted', ended_ms = ? WHERE status = 'running' AND id < ?`

	listRows       = `SELECT ` + columns + ` FROM executions WHERE (?1 = '' OR status = ?1) AND created_ms >= ?2 ORDER BY id DESC LIMIT ?3`
	listUnreported = `SELECT ` + columns + ` FROM executions WHERE background = 1 AND reported = 0 AND status <> 'running' ORDER BY id DESC LIMIT ?`
	countRows      = `SELECT count(*), coalesce(max(id), 0) FROM executions`
)

// isLogicError reports whether SQLite didn't understand a statement: a table or a column isn't there.
func isLogicError(err error) bool {
	var own sqlite3.Error
	return errors.As(err, &own) && own.Code == sqlite3.ErrError
}
