package admission

import "time"

// Released is what became of a wish to take back what a run holds.
type Released struct {
	Places int // that are free now
	Held   int // that aren't, because the node may well still work on them
}

// Release takes back what a run holds at an adapter of a node, at whichever generation: for an operator who knows better
// than a node that doesn't say. Without force that is only what an outcome was decided for and whose end the node hasn't
// confirmed. Whatever is said of those places later changes nothing. Nothing at all = the run holds no place there.
func (s *Scheduler) Release(at Place, runID string, force bool) Released {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*Grant
	for key, c := range s.conns {
		if key.node != at.Node {
			continue
		}
		if p := c.find(at.Adapter); p != nil {
			for _, g := range p.holders {
				if g.key.runID == runID {
					found = append(found, g)
				}
			}
		}
	}
	var r Released
	for _, g := range found {
		if !force && g.state != heldDecided {
			r.Held++
			continue
		}
		s.freeLocked(g, time.Now())
		r.Places++
	}
	return r
}
