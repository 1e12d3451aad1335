package execution

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// ToolCallPiece is what a provider says of one tool call in one message of its stream. Any field may be missing:
// providers leave out the index, number every call 0, give no id, or give one in the first piece only.
type ToolCallPiece struct {
	Index     *int
	ID        string
	Name      string
	Arguments string
}

// The bounds of what an answer may call.
const (
	maxCalls = 1024
	maxHeld  = 1 << 20 // bytes of arguments that wait for a name
)

// Assembler puts the pieces of an answer's tool calls together and keeps parallel calls apart. It gives each call an
// index of its own, counted from 0 in the order in which the calls get their names, before which nothing is told of them,
// and an id that isn't empty and is no other call's; an id that the provider gave stays as it is. A piece belongs to
//
//   - the call with its id, unless it names another tool or has another index;
//   - else, if it has a name, a new call; but the call at its index (or the latest, if it has none) when that one waits
//     for its name, or has the same name, no id of the provider's, and arguments that aren't complete;
//   - else the call at its index, or the latest.
//
// Two pieces with a name in one message are always two calls, unless they share an id. It isn't safe for concurrent
// use.
type Assembler struct {
	seed   string
	calls  []*call
	byID   map[string]*call // ids of the provider's
	byPos  map[int]*call    // the latest call at an index of the provider's
	ids    map[string]bool  // that were given out
	rounds int              // messages so far
	named  int              // calls that have a name
	held   int              // bytes of arguments that ever waited for a name
	out    []ToolCallDelta
}

// call is one tool call, as far as it is known.
type call struct {
	index int // meaningful with a name
	id    string
	name  string
	pos   *int // the provider's index
	owned bool // id is the provider's
	round int  // the message that named it last
	again bool // its name came again after its arguments were complete
	held  []byte
	args  jsonEnd
}

// NewAssembler returns an empty one. Ids that it makes depend on seed (a run's id) and the call's index alone.
func NewAssembler(seed string) *Assembler {
	return &Assembler{seed: seed, byID: map[string]*call{}, byPos: map[int]*call{}, ids: map[string]bool{}}
}

// Len returns how many calls have begun.
func (a *Assembler) Len() int { return len(a.calls) }

// Add takes what one message of the provider says of its calls and returns what is new of them, to be emitted in this
// order. The result is valid until the next call. An error is an adapter_decode.
func (a *Assembler) Add(pieces ...ToolCallPiece) ([]ToolCallDelta, error) {
	a.rounds++
	a.out = a.out[:0]
	for _, p := range pieces {
		if p.ID == "" && p.Name == "" && p.Arguments == "" {
			continue
		}
		c := a.find(&p)
		if c == nil {
			if len(a.calls) == maxCalls {
				return nil, Failf(CodeAdapterDecode, OriginProvider, "provider made more than %d tool calls", maxCalls)
			}
			c = a.begin(&p)
		}
		if err := a.grow(c, &p); err != nil {
			return nil, err
		}
	}
	return a.out, nil
}

// Finish returns an adapter_decode if a call never got a name, since nobody could make it.
func (a *Assembler) Finish() error {
	for _, c := range a.calls {
		if c.name == "" {
			return Failf(CodeAdapterDecode, OriginProvider, "provider made a tool call without a name")
		}
	}
	return nil
}

// find returns the call that a piece belongs to, nil for a new one.
func (a *Assembler) find(p *ToolCallPiece) *call {
	if k := a.byID[p.ID]; p.ID != "" && k != nil && !k.otherThan(p) {
		return k
	}
	c := a.latest(p.Index)
	switch {
	case c == nil:
		return nil
	case p.Name != "":
		if c.repeats(p, a.rounds) {
			return c
		}
		return nil
	case c.again && !blank(p.Arguments): // so its name didn't repeat, it began another call
		p.Name = c.name
		return nil
	case p.ID != "" && p.Index == nil && c.args.complete():
		return nil // its name is to come
	}
	return c // whatever its id: some give each piece one of its own
}

// otherThan reports whether a piece with the id of c is another call all the same: some providers give all calls one.
func (c *call) otherThan(p *ToolCallPiece) bool {
	if p.Name == "" || c.name == "" {
		return false
	}
	return p.Name != c.name || p.Index != nil && c.pos != nil && *c.pos != *p.Index
}

// repeats reports whether a piece with a name, which its id doesn't tell from c, goes on with c rather than begins
// another call.
func (c *call) repeats(p *ToolCallPiece, round int) bool {
	fresh := p.ID != "" && c.owned
	switch {
	case fresh:
		return false
	case c.name == "":
		return true // here it comes
	case p.Name != c.name, c.round == round:
		return false
	case !c.args.complete():
		return true
	}
	return p.ID == "" && blank(p.Arguments) // what follows will tell, see again
}

// latest returns the latest call at an index, or of all.
func (a *Assembler) latest(pos *int) *call {
	if pos != nil {
		return a.byPos[*pos]
	}
	if len(a.calls) == 0 {
		return nil
	}
	return a.calls[len(a.calls)-1]
}

// begin makes a new call.
func (a *Assembler) begin(p *ToolCallPiece) *call {
	c := &call{}
	a.calls = append(a.calls, c)
	if p.Index != nil {
		pos := *p.Index
		c.pos = &pos
		a.byPos[pos] = c
	}
	return c
}

// grow adds a piece to a call.
func (a *Assembler) grow(c *call, p *ToolCallPiece) error {
	if p.ID != "" && (!c.owned || p.Name != "") {
		c.owned = true
		a.byID[p.ID] = c
	}
	if p.Name != "" {
		c.again = c.args.complete()
		c.round = a.rounds
	}
	c.args.write(p.Arguments)
	switch {
	case c.name != "":
		if p.Arguments != "" {
			a.out = append(a.out, ToolCallDelta{Index: c.index, Arguments: p.Arguments})
		}
	case p.Name == "":
		if c.id == "" && a.usable(p.ID) {
			c.id = p.ID
			a.ids[p.ID] = true
		}
		if a.held += len(p.Arguments); a.held > maxHeld {
			return Failf(CodeAdapterDecode, OriginProvider, "provider gave over %d bytes of arguments before the tool's name", maxHeld)
		}
		c.held = append(c.held, p.Arguments...)
	default:
		c.name, c.index = p.Name, a.named
		a.named++
		if c.id == "" {
			c.id = a.id(c.index, p.ID)
		}
		a.out = append(a.out, ToolCallDelta{Index: c.index, ID: c.id, Name: c.name, Arguments: string(c.held) + p.Arguments})
		c.held = nil
	}
	return nil
}

// id returns the id of the call at index: the provider's, unless there is none or another call has it.
func (a *Assembler) id(index int, given string) string {
	id := given
	if !a.usable(id) {
		sum := sha256.Sum256([]byte(a.seed))
		id = "call_" + hex.EncodeToString(sum[:6]) + "_" + strconv.Itoa(index)
		for a.ids[id] {
			id += "x"
		}
	}
	a.ids[id] = true
	return id
}

// usable reports whether an id that a provider gives is one.
func (a *Assembler) usable(id string) bool { return id != "" && len(id) <= maxMessageID && !a.ids[id] }

// jsonEnd tells when a JSON object or array that comes in pieces is complete. It takes valid JSON for granted.
type jsonEnd struct {
	depth    int
	begun    bool
	inString bool
	escaped  bool
}

func (e *jsonEnd) complete() bool { return e.begun && e.depth == 0 }

func (e *jsonEnd) write(s string) {
	for i := range len(s) {
		c := s[i]
		switch {
		case e.escaped:
			e.escaped = false
		case e.inString:
			e.escaped, e.inString = c == '\\', c != '"'
		case c == '"':
			e.inString = true
		case c == '{' || c == '[':
			e.depth++
			e.begun = true
		case c == '}' || c == ']':
			e.depth = max(e.depth-1, 0)
		}
	}
}

func blank(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return false
		}
	}
	return true
}
