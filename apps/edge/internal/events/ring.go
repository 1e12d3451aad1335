package events

import "sort"

// ring holds the newest events that were added, in their order.
type ring struct {
	most int     // it grows to this length
	list []Event // from next on, and round
	next int
	lost uint64 // ID of the newest event that had to make room
}

// add returns the place where e is now.
func (r *ring) add(e Event) *Event {
	if len(r.list) < r.most {
		r.list = append(r.list, e)
		return &r.list[len(r.list)-1]
	}
	at := &r.list[r.next]
	r.lost, *at = at.ID, e
	r.next = (r.next + 1) % r.most
	return at
}

// at returns the i-th, counted from the oldest.
func (r *ring) at(i int) *Event { return &r.list[(r.next+i)%len(r.list)] }

// after returns the index of the first event whose ID is above id.
func (r *ring) after(id uint64) int {
	return sort.Search(len(r.list), func(i int) bool { return r.at(i).ID > id })
}
