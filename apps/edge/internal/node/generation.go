package node

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// generationFile is the file in state_dir that remembers which generations may have been used.
const generationFile = "generation.json"

// generationBlock is how many generations one write of the file reserves. A restart skips what is left of its block.
const generationBlock = 1024

// maxGeneration is above every generation: numbers mustn't begin anew at 0, and a node's record keeps them in 63 bits.
// No edge that counts comes near it.
const maxGeneration = math.MaxInt64 - generationBlock

// Generations hands out connection generations. They only grow, across restarts of the edge too: what an earlier
// process may have used is on disk before it is used. It also keeps the edge's own id, drawn once for a state_dir.
type Generations struct {
	path string
	id   string
	lock *os.File // held for as long as this process may hand out numbers

	mu       sync.Mutex
	last     uint64 // handed out last
	reserved uint64 // on disk: numbers up to here may be handed out
}

type generationState struct {
	EdgeID   string `json:"edge_id"`
	Reserved uint64 `json:"reserved_generation"`
}

// OpenGenerations opens the numbers kept in dir, which it makes if need be. A file that can't be read or understood is
// an error that names it, never a fresh start: a number used twice would let an old connection pass for a new one.
func OpenGenerations(dir string) (*Generations, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state_dir %s can't be made: %w", dir, err)
	}
	lock, err := lockFile(filepath.Join(dir, generationFile+".lock"))
	if err != nil {
		return nil, err
	}
	g := &Generations{path: filepath.Join(dir, generationFile), lock: lock}
	if err := g.load(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return g, nil
}

// lockFile keeps a second edge from handing out the same numbers. The kernel drops the lock with the process.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state_dir isn't usable: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s is locked: another edge uses this state_dir; give each edge its own: %w", path, err)
	}
	return f, nil
}

func (g *Generations) load() error {
	data, err := os.ReadFile(g.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		var b [6]byte
		_, _ = rand.Read(b[:]) // never fails
		g.id = "edge-" + hex.EncodeToString(b[:])
		return g.reserveLocked()
	case err != nil:
		return fmt.Errorf("last connection generation can't be read: %w", err)
	}
	var s generationState
	if err := json.Unmarshal(data, &s); err != nil || s.EdgeID == "" || s.Reserved == 0 || s.Reserved >= maxGeneration {
		return fmt.Errorf("%s isn't a generation file (%d bytes): restore it, or put in "+
			`{"edge_id":"NAME","reserved_generation":N} with N above every generation that nodes have seen`,
			g.path, len(data))
	}
	g.id, g.last, g.reserved = s.EdgeID, s.Reserved, s.Reserved
	return nil
}

// Next returns the next generation. It writes the file once a block; an error means that nothing was handed out.
func (g *Generations) Next() (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last >= g.reserved {
		if err := g.reserveLocked(); err != nil {
			return 0, err
		}
	}
	g.last++
	return g.last, nil
}

// EdgeID returns the edge's own id; it stays the same for the life of the state_dir.
func (g *Generations) EdgeID() string { return g.id }

// Close lets another process use the state_dir.
func (g *Generations) Close() error { return g.lock.Close() }

func (g *Generations) reserveLocked() error {
	next := g.reserved + generationBlock
	if next >= maxGeneration {
		return errors.New("connection generations are used up")
	}
	data, err := json.Marshal(generationState{EdgeID: g.id, Reserved: next})
	if err == nil {
		err = replaceFile(g.path, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("connection generations can't be reserved: %w", err)
	}
	g.reserved = next
	return nil
}

// replaceFile writes data so that after a crash the file is either the old or the new one, whole.
func replaceFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
