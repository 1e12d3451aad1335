package credential

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// disk replaces files so that after a crash each is the old or the new one, whole.
type disk struct {
	// step is called before each step of a write; an error ends it there. nil = nothing interferes.
	step func(name string) error
}

// The steps of a write.
const (
	stepWrite  = "write"
	stepSync   = "sync"
	stepRename = "rename"
	stepDir    = "dir"
)

func (d disk) at(name string) error {
	if d.step == nil {
		return nil
	}
	return d.step(name)
}

// replace writes data in place of the file. After an error the file may be either; the caller writes again what is in
// force as soon as it can.
func (d disk) replace(path string, data []byte) error {
	if err := d.prepare(path+".new", data); err != nil {
		_ = os.Remove(path + ".new")
		return fmt.Errorf("%s can't be written: %w", path, plain(err))
	}
	err := d.at(stepRename)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = d.at(stepDir)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("%s can't be written: %w", path, plain(err))
	}
	return nil
}

// prepare writes the file that is to take the other's place. Its name is always the same, so that crashes leave one at most.
func (d disk) prepare(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = f.Chmod(0o600)
	if err == nil {
		err = d.at(stepWrite)
	}
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = d.at(stepSync)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// plain is an error without the path that the caller names itself, or doesn't want to name.
func plain(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

// record is what outlives a restart of a slot.
type record struct {
	Revision uint64   `json:"revision"`
	SinceMS  int64    `json:"since_ms"` // of the revision, by the edge's clock
	Disabled bool     `json:"disabled,omitempty"`
	Key      string   `json:"key,omitempty"`     // the mark of the key that was read last
	Revoked  []string `json:"revoked,omitempty"` // marks of keys that are revoked, the newest last
}

// maxRevoked is how many revoked keys of a slot are remembered.
const maxRevoked = 256

func (r *record) revoked() bool { return slices.Contains(r.Revoked, r.Key) }

// take notes which key was read last, and reports whether that changes anything. A key that was revoked is worthless in
// every slot: to another slot, too, it comes back as a revoked one.
func (r *record) take(mark string, all map[string]record) (changed bool) {
	changed = r.Key != mark
	r.Key = mark
	if r.revoked() {
		return changed
	}
	for _, other := range all {
		if slices.Contains(other.Revoked, mark) {
			r.revoke()
			return true
		}
	}
	return changed
}

// revoke makes the key worthless for good. The list is never changed in place: earlier records share it.
func (r *record) revoke() {
	if !r.revoked() {
		r.Revoked = append(slices.Clone(r.Revoked[max(0, len(r.Revoked)-maxRevoked+1):]), r.Key)
	}
}

// book is slots.json.
type book struct {
	Version int               `json:"version"`
	Install string            `json:"fingerprint_key"` // of the HMACs, in hex
	Slots   map[string]record `json:"slots"`
}

const (
	bookFile    = "slots.json"
	bookVersion = 1
	installSize = 32
	maxBook     = 16 << 20
)

func (d disk) writeBook(path string, install []byte, records map[string]record) error {
	data, err := json.MarshalIndent(book{Version: bookVersion, Install: hex.EncodeToString(install), Slots: records}, "", " ")
	if err != nil {
		return fmt.Errorf("%s can't be written: %w", path, err)
	}
	return d.replace(path, append(data, '\n'))
}

// readBook reads slots.json. fs.ErrNotExist is in the error's chain when there is none; whatever else is wrong with it is
// an error that names it, never a fresh start: a revoked key would be good again.
func readBook(path string) (install []byte, records map[string]record, err error) {
	data, err := readPrivate(path, maxBook, false)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %w", path, err)
	}
	var b book
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var head struct{ Version int }
	if json.Unmarshal(data, &head) == nil && head.Version > bookVersion {
		return nil, nil, fmt.Errorf("%s was written by a newer version (%d); start that one, or restore the file", path, head.Version)
	}
	if err := decoder.Decode(&b); err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			install, err = hex.DecodeString(b.Install)
		}
		if err == nil && len(install) == installSize && b.Version == bookVersion && b.Slots != nil {
			return install, b.Slots, nil
		}
	}
	return nil, nil, fmt.Errorf("%s isn't a file of slot states (%d bytes), it was cut or changed: restore it; without it, keys "+
		"that were revoked would be good again", path, len(data))
}
