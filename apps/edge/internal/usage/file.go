package usage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver
)

const (
	// applicationID marks the file as a ledger of IOP ("IOPu").
	applicationID = 0x494f5075
	// version is the schema's.
	version = 1

	schema = `CREATE TABLE usage (day TEXT NOT NULL, principal TEXT NOT NULL, model TEXT NOT NULL, node TEXT NOT NULL,
	requests INTEGER NOT NULL, failed INTEGER NOT NULL, estimated INTEGER NOT NULL,
	input INTEGER NOT NULL, output INTEGER NOT NULL, cached INTEGER NOT NULL, reasoning INTEGER NOT NULL,
	PRIMARY KEY (day, principal, model, node)) WITHOUT ROWID`

	count = `INSERT INTO usage VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,
	failed = failed + excluded.failed, estimated = estimated + excluded.estimated, input = input + excluded.input,
	output = output + excluded.output, cached = cached + excluded.cached, reasoning = reasoning + excluded.reasoning`
)

// open opens or makes the file. One connection does all: writes are rare and short.
func open(path string) (*sql.DB, error) {
	made, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // SQLite gives the log the same rights
	if err != nil {
		return nil, err
	}
	info, err := made.Stat()
	if err = errors.Join(err, made.Close()); err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it isn't a regular file")
	}
	options := url.Values{"_journal_mode": {"WAL"}, "_synchronous": {"NORMAL"}, "_busy_timeout": {"1000"}}
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+options.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if err := prepare(db); err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

// prepare checks whose file it is, and makes the table in a new one.
func prepare(db *sql.DB) error {
	var id, have, tables int
	for query, into := range map[string]*int{`PRAGMA application_id`: &id, `PRAGMA user_version`: &have, `SELECT COUNT(*) FROM sqlite_schema`: &tables} {
		if err := db.QueryRow(query).Scan(into); err != nil {
			return err
		}
	}
	switch {
	case id == applicationID && have == version:
		return nil
	case id == applicationID:
		return fmt.Errorf("it is of schema %d, and this version knows %d", have, version)
	case id != 0 || tables != 0:
		return errors.New("it isn't a usage ledger")
	}
	_, err := db.Exec(fmt.Sprintf("BEGIN; %s; PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT", schema, applicationID, version))
	return err
}

// write adds a batch and drops the days that are too old.
func (l *Ledger) write(batch map[key]Counts) error {
	tx, err := l.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit it does nothing
	for k, c := range batch {
		if _, err := tx.Exec(count, k.day, k.principal, k.model, k.node, c.Requests, c.Failed, c.Estimated, c.Input, c.Output, c.Cached, c.Reasoning); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(`DELETE FROM usage WHERE day < ?`, dayOf(time.Now().AddDate(0, 0, -keepDays))); err != nil {
		return err
	}
	return tx.Commit()
}

// read gives take every row between the filter's days.
func (l *Ledger) read(ctx context.Context, f Filter, take func(key, Counts)) error {
	to := f.To
	if to == "" {
		to = "9999-12-31"
	}
	rows, err := l.db.QueryContext(ctx, `SELECT * FROM usage WHERE day BETWEEN ? AND ?`, f.From, to)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var k key
		var c Counts
		if err := rows.Scan(&k.day, &k.principal, &k.model, &k.node, &c.Requests, &c.Failed, &c.Estimated, &c.Input, &c.Output, &c.Cached, &c.Reasoning); err != nil {
			return err
		}
		take(k, c)
	}
	return rows.Err()
}
