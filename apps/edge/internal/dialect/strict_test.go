package dialect

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"iop/packages/go/patience"
)

// entry is an object that tests read: one member of each kind.
type entry struct {
	name  string
	count *int64
	raw   json.RawMessage
	inner []string // the paths and texts of a list of objects
}

func (e *entry) member(name string) any {
	switch name {
	case "name":
		return &e.name
	case "count":
		return &e.count
	case "raw":
		return &e.raw
	case "list":
		return (*innerList)(&e.inner)
	case "user":
		return Ignored{}
	case "n":
		return Only{Value: "1", Why: "ask again"}
	case "audio":
		return Unsupported{Why: "text is all there is"}
	}
	return nil
}

type innerList []string

func (l *innerList) ReadJSON(at string, raw []byte) *Refusal {
	return List(at, raw, func(at string, raw []byte) *Refusal {
		var text string
		ref := Object(at, raw, func(name string) any {
			if name == "text" {
				return &text
			}
			return nil
		})
		*l = append(*l, at+"="+text)
		return ref
	})
}

func TestObjectReadsEachKindOfMember(t *testing.T) {
	var e entry
	body := " {\n \"name\" : \"a \\\" b\\\\\" , \"count\":\t7,\"raw\":{\"x\":[1,\"]}\"]} ,\"list\":[ {\"text\":\"é\"},{} , {\"te\\u0078t\":\"}\"}]," +
		`"user":{"any":["thing",{}]},"n":1,"audio":null} `
	if ref := Object("", []byte(body), e.member); ref != nil {
		t.Fatal(ref)
	}
	if e.name != `a " b\` || e.count == nil || *e.count != 7 || string(e.raw) != `{"x":[1,"]}"]}` ||
		strings.Join(e.inner, " ") != "list[0]=é list[1]= list[2]=}" {
		t.Errorf("%+v", e)
	}
}

func TestObjectNamesWhatIsWrong(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, c := range []struct{ body, field, says string }{
		{``, "", "valid JSON"},
		{`{"name":"a"} {}`, "", "valid JSON"},
		{`{"name":"a",}`, "", "valid JSON"},
		{"{\"name\":\"\xff\"}", "", "UTF-8"},
		{`[]`, "", "the body must be an object"},
		{`"text"`, "", "the body must be an object"},
		{`null`, "", "the body must be an object"},
		{`{"nmae":"a"}`, "nmae", `unknown member "nmae"`},
		{`{"nmae":null}`, "nmae", "unknown member"},
		{`{"":1}`, "", `unknown member ""`},
		{`{"a\nb":1}`, "", `"a\nb"`},
		{`{"` + long + `":1}`, "", long[:64] + `"`},
		{`{"name":7}`, "name", "wrong type"},
		{`{"count":1.5}`, "count", "wrong type"},
		{`{"name":"a","name":"b"}`, "name", "twice"},
		{`{"name":null,"n\u0061me":"b"}`, "name", "twice"},
		{`{"n":2}`, "n", "only 1"},
		{`{"audio":{}}`, "audio", "text is all there is"},
		{`{"list":{}}`, "list", "must be a list"},
		{`{"list":[{},7]}`, "list[1]", "list[1]: must be an object"},
		{`{"list":[{"text":"a"},{"txt":"b"}]}`, "list[1].txt", "unknown member"},
		{`{"list":[{"text":["a"]}]}`, "list[0].text", "wrong type"},
	} {
		var e entry
		ref := Object("", []byte(c.body), e.member)
		if ref == nil || ref.Field != c.field || !strings.Contains(ref.Text, c.says) {
			t.Errorf("%s: %+v, want field %q and a text with %q", c.body, ref, c.field, c.says)
			continue
		}
		if c.field != "" && !strings.Contains(ref.Text, c.field[strings.LastIndexByte(c.field, '.')+1:]) {
			t.Errorf("%s: the text doesn't name the field: %s", c.body, ref)
		}
		if strings.ContainsAny(ref.Text, "\r\n") || len(ref.Text) > 200 {
			t.Errorf("%s: not fit for a line: %q", c.body, ref.Text)
		}
	}
}

// What is read of a request doesn't hold on to the body or change with it, whose memory is used again.
func TestObjectCopiesWhatItKeeps(t *testing.T) {
	var e entry
	body := []byte(`{"name":"abc","raw":{"k":"abc"},"list":[{"text":"abc"}]}`)
	if ref := Object("", body, e.member); ref != nil {
		t.Fatal(ref)
	}
	copy(body, bytes.Repeat([]byte("z"), len(body)))
	if e.name != "abc" || string(e.raw) != `{"k":"abc"}` || e.inner[0] != "list[0]=abc" {
		t.Errorf("%+v", e)
	}
}

// A body with a large text is not copied once for each level that the text stands below.
func TestObjectDoesNotCopyEachLevel(t *testing.T) {
	body := []byte(`{"list":[{"text":"` + strings.Repeat("x", 8<<20) + `"}]}`)
	patience.Allocated(t, 1<<20, func() {
		if ref := Object("", body, func(string) any { return (*skippedList)(nil) }); ref != nil {
			t.Fatal(ref)
		}
	})
}

type skippedList struct{}

func (*skippedList) ReadJSON(at string, raw []byte) *Refusal {
	return List(at, raw, func(at string, raw []byte) *Refusal {
		return Object(at, raw, func(string) any { return Ignored{} })
	})
}

// tree reads any JSON by Object and List alone.
type tree struct{ value any }

func (n *tree) ReadJSON(at string, raw []byte) *Refusal {
	if strings.Count(at, "[")+strings.Count(at, ".") > 20 {
		return Refuse(at, "no dialect is as deep as this, and each level is read again")
	}
	switch raw[0] {
	case '{':
		members := map[string]*tree{}
		n.value = members
		return Object(at, raw, func(name string) any {
			if members[name] != nil {
				return Ignored{} // Object refuses it
			}
			members[name] = &tree{}
			return members[name]
		})
	case '[':
		list := []any{}
		ref := List(at, raw, func(at string, raw []byte) *Refusal {
			var child tree
			ref := child.ReadJSON(at, raw)
			list = append(list, child.plain())
			return ref
		})
		n.value = list
		return ref
	}
	if err := json.Unmarshal(raw, &n.value); err != nil {
		return Refuse(at, err.Error())
	}
	return nil
}

func (n *tree) plain() any {
	members, ok := n.value.(map[string]*tree)
	if !ok {
		return n.value
	}
	plain := map[string]any{}
	for name, child := range members {
		plain[name] = child.plain()
	}
	return plain
}

// readsAlike checks a body against encoding/json.
func readsAlike(t interface {
	Helper()
	Fatalf(string, ...any)
}, body []byte) {
	t.Helper()
	var got tree
	root := map[string]*tree{}
	ref := Object("", body, func(name string) any {
		root[name] = &tree{}
		return root[name]
	})
	if ref != nil {
		return // a name that comes twice, of which encoding/json takes the last; a depth
	}
	var want map[string]any
	if err := json.Unmarshal(body, &want); err != nil || want == nil {
		t.Fatalf("%q was read, but %v", body, err)
	}
	got.value = root
	a, _ := json.Marshal(got.plain())
	b, _ := json.Marshal(want)
	if !bytes.Equal(a, b) {
		t.Fatalf("%q was read as %s, not %s", body, a, b)
	}
}

func TestObjectReadsWhatTheJSONPackageReads(t *testing.T) {
	value := rapid.Deferred(anyJSON)
	rapid.Check(t, func(t *rapid.T) {
		body, err := json.MarshalIndent(map[string]any{"a": value.Draw(t, "a"), "b\\\"": value.Draw(t, "b"), "": value.Draw(t, "c")},
			"", rapid.SampledFrom([]string{"", " ", "\t"}).Draw(t, "indent"))
		if err != nil {
			t.Fatal(err)
		}
		if ref := Object("", body, func(string) any { return Ignored{} }); ref != nil {
			t.Fatalf("%s: %v", body, ref)
		}
		readsAlike(t, body)
	})
}

func anyJSON() *rapid.Generator[any] {
	value := rapid.Deferred(anyJSON)
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[\[\]{},:"\\ \n]{0,6}`))
	return rapid.OneOf(
		rapid.Just(any(nil)), rapid.Just(any(true)), rapid.Map(rapid.Float64(), func(f float64) any { return f }),
		rapid.Map(text, func(s string) any { return s }),
		rapid.Map(rapid.SliceOfN(value, 0, 3), func(l []any) any { return l }),
		rapid.Map(rapid.MapOfN(text, value, 0, 3), func(m map[string]any) any { return m }),
	)
}

func FuzzObject(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":[1,{"b":"\"}"},[]],"c":null}`, ` { "\u0061" : -1e9 } `, `{"a":"\\","b":"\\\""}`, `{`, `{"a"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		readsAlike(t, body)
		// Below the body nothing is checked again: what isn't JSON all the same must not hang or panic.
		_ = (&tree{}).ReadJSON("x", append([]byte("{"), body...))
		_ = (&tree{}).ReadJSON("x", append([]byte("["), body...))
	})
}
