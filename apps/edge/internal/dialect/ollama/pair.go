package ollama

import (
	"strconv"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// pair returns the messages with ids for calls that have none, and each tool's answer with the id of the call that it
// answers. Half of Ollama's clients send no ids: such an answer belongs to the first call of the latest round that isn't
// answered and has the tool's name, or any name when it doesn't say one. The ids depend on where a call stands alone, so
// that the next turn of the same conversation has the same ones.
func (c *conversation) pair() ([]execution.Message, *dialect.Refusal) {
	l := c.said
	taken := map[string]bool{}
	for i := range l {
		for _, c := range l[i].ToolCalls {
			taken[c.ID] = true
		}
	}
	var r round
	out := make([]execution.Message, len(l))
	for i := range l {
		m := &l[i]
		switch {
		case len(m.ToolCalls) > 0:
			if i == 0 || l[i-1].Role != execution.RoleAssistant { // some send parallel calls as one message each
				r = round{byID: map[string]int{}, byName: map[string][]int{}}
			}
			for j := range m.ToolCalls {
				r.add(&m.ToolCalls[j], i, j, taken)
			}
		case m.Role == execution.RoleTool:
			if ref := r.answer(m); ref != nil {
				return nil, ref
			}
		}
		out[i] = m.Message
	}
	return out, nil
}

// round is the calls that an assistant made at one time. It finds a call in no more time when there are many: a body
// may hold very many.
type round struct {
	ids      []string
	answered []bool
	byID     map[string]int   // ids that the caller gave
	byName   map[string][]int // those of a name that aren't answered, and some that are
	first    int              // those before it are answered
}

// add takes the call j of message i in and gives it an id if it has none.
func (r *round) add(c *execution.ToolCall, i, j int, taken map[string]bool) {
	k := len(r.ids)
	if c.ID != "" {
		r.byID[c.ID] = k
	} else {
		c.ID = "call_" + strconv.Itoa(i) + "_" + strconv.Itoa(j)
		for taken[c.ID] {
			c.ID += "x"
		}
		taken[c.ID] = true
	}
	r.ids, r.answered = append(r.ids, c.ID), append(r.answered, false)
	r.byName[c.Name] = append(r.byName[c.Name], k)
}

// answer names the call that a tool's message answers. An id that no call has is left as it is when the calls have ids:
// its call isn't in the conversation any more, and the provider may know what to do.
func (r *round) answer(m *message) *dialect.Refusal {
	k, found := r.byID[m.ToolCallID]
	if !found {
		if m.ToolCallID != "" && len(r.byID) > 0 {
			return nil
		}
		k, found = r.next(m.toolName)
	}
	switch {
	case found:
		r.answered[k] = true
		m.ToolCallID = r.ids[k]
	case m.ToolCallID == "":
		return dialect.Refuse(m.at, m.at+": answers no call; name one of the assistant's last calls by tool_name, or any by tool_call_id")
	}
	return nil
}

// next returns the first call that isn't answered, of a tool's when the name isn't "".
func (r *round) next(name string) (int, bool) {
	if name == "" {
		for r.first < len(r.ids) && r.answered[r.first] {
			r.first++
		}
		return r.first, r.first < len(r.ids)
	}
	waiting := r.byName[name]
	for len(waiting) > 0 && r.answered[waiting[0]] {
		waiting = waiting[1:]
	}
	if len(waiting) == 0 {
		return 0, false
	}
	r.byName[name] = waiting
	return waiting[0], true
}
