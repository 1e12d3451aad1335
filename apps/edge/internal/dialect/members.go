package dialect

import (
	"bytes"
	"encoding/json"
)

// maxOnly is the longest spelling that is compared with a value that a member may have, in bytes.
const maxOnly = 256

// Unsupported stands for a member that the API has and a run can't carry: it is refused by name, unless it is null.
type Unsupported struct{ Why string }

// ReadJSON implements [Reader].
func (u Unsupported) ReadJSON(at string, _ []byte) *Refusal {
	return Refuse(at, at+": isn't supported here; "+u.Why)
}

// Only stands for a member that may have one value, the one that asks for nothing special; any other is refused.
type Only struct {
	Value string // as it stands in JSON without spaces
	Why   string // what is wrong with others
}

// ReadJSON implements [Reader].
func (o Only) ReadJSON(at string, raw []byte) *Refusal {
	var compact bytes.Buffer
	if len(raw) > maxOnly || json.Compact(&compact, raw) != nil || compact.String() != o.Value {
		return Refuse(at, at+": only "+o.Value+" is supported here; "+o.Why)
	}
	return nil
}
