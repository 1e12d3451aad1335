package store

import "time"

// Retain changes what the journal keeps, as Config.MaxAge and MaxRows do; 0 is what was configured. It never blocks, and
// takes effect with the next look at old rows.
func (j *Journal) Retain(maxAge time.Duration, maxRows int) {
	if j == nil {
		return
	}
	if maxAge <= 0 {
		maxAge = j.cfg.MaxAge
	}
	if maxRows <= 0 {
		maxRows = j.cfg.MaxRows
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.maxAge, j.maxRows = maxAge, maxRows
}

// retention returns what is kept.
func (j *Journal) retention() (maxAge time.Duration, maxRows int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.maxAge, j.maxRows
}
