// Package config turns the programs' YAML files into checked, immutable values: [Edge], [Node], and the Edge's runtime
// view [State]. It owns the schema, its defaults, the secret type, and how tokens and keys are made and looked up.
//
// It is strict: what it doesn't know, what can't work and what this version doesn't support is refused, all at once,
// each with file, line and path. It starts nothing, watches nothing and logs nothing, and no error of it holds a
// secret. yaml is imported here and nowhere else.
package config

import "time"

// LoadEdge reads and checks an Edge's configuration. A refusal is an [*Errors].
func LoadEdge(path string) (*Edge, error) { panic("not written yet") }

// LoadNode reads and checks a node's configuration and reads its token. A refusal is an [*Errors].
func LoadNode(path string) (*Node, error) { panic("not written yet") }

// ParseEdge checks data as if it were the content of the file at path.
func ParseEdge(path string, data []byte) (*Edge, error) { panic("not written yet") }

// ParseNode checks data as if it were the content of the file at path, and reads the node's token.
func ParseNode(path string, data []byte) (*Node, error) { panic("not written yet") }

// Default returns the values that an empty section stands for.
func Default[T Limits | EdgeTimers | NodeTimers | Queue | Listen | Log]() T { panic("not written yet") }

// Errors is everything that is wrong with a configuration, in the order of its lines.
type Errors struct{ List []Problem }

// Problem is one thing that is wrong. Text says what, and what to do; it never holds a secret.
type Problem struct {
	File string
	Line int // 0 = the file as a whole
	Path string
	Text string
}

// Error lists every problem, one a line.
func (e *Errors) Error() string { panic("not written yet") }

// Secret is a string that can't be printed: every format, JSON, YAML and text show [redacted].
type Secret struct{ value *string }

// NewSecret wraps a secret.
func NewSecret(s string) Secret { return Secret{value: &s} }

// Reveal returns the secret itself; only what sends it or hashes it may call this.
func (s Secret) Reveal() string { panic("not written yet") }

// NewToken makes a node's token. join is the string to give to the node, shown once; sha256hex goes into the Edge's
// token_hashes.
func NewToken() (join Secret, sha256hex string) { panic("not written yet") }

// NewKey makes an API key. key is shown once; sha256hex goes into key_hashes.
func NewKey() (key Secret, sha256hex string) { panic("not written yet") }

// HashSecret returns the hash that records keep of a bare token or an API key.
func HashSecret(secret string) [32]byte { panic("not written yet") }

// State is the Edge's immutable runtime view: routes, principals, nodes and what each node is told. It is swapped as a
// whole; every method may be called concurrently and returns values that must not be modified.
type State struct {
	// Version numbers the states of one Edge, across restarts too if the caller continues the count.
	Version uint64
	// Edge is the configuration that the state was made from.
	Edge *Edge
}

// Projection is what one node is told: it is numbered so that an acknowledgement can be matched.
type Projection struct {
	// Number only grows; it is the version of the first state that had this content.
	Number uint64
	// Adapters are the node's adapters.
	Adapters []ProjectedAdapter
}

// ProjectedAdapter is an adapter with the number of its content.
type ProjectedAdapter struct {
	Adapter
	// Revision is the version of the first state in which the adapter was as it is.
	Revision uint64
}

// NewState builds the runtime view of e. Projections and adapters that are as they were in prev (nil = there is none)
// keep their numbers, the others get version. A version that isn't above prev's is raised to one that is; the first
// one must be above every one that an earlier process of this Edge used, so that no number goes backwards.
func NewState(e *Edge, version uint64, prev *State) *State { panic("not written yet") }

// Node returns the record of a node, or nil.
func (s *State) Node(id string) *NodeRecord { panic("not written yet") }

// NodeByTokenHash returns the record whose token has this hash; expired reports that the token's not_after has
// passed, and such a token must be refused. nil is an unknown token. It takes the same time whichever record it is.
func (s *State) NodeByTokenHash(sum [32]byte, now time.Time) (rec *NodeRecord, expired bool) {
	panic("not written yet")
}

// PrincipalByKeyHash returns the principal that an API key with this hash belongs to, or nil. It takes the same time
// whichever principal it is.
func (s *State) PrincipalByKeyHash(sum [32]byte) *Principal { panic("not written yet") }

// AdminKey reports whether a key with this hash opens the admin listener.
func (s *State) AdminKey(sum [32]byte) bool { panic("not written yet") }

// Anonymous reports whether callers need no key: no principals are configured.
func (s *State) Anonymous() bool { panic("not written yet") }

// Route returns the route that serves a model: the one of that name, else the route "*", else nil.
func (s *State) Route(model string) *Route { panic("not written yet") }

// Routes returns the routes in the order of the file.
func (s *State) Routes() []Route { panic("not written yet") }

// Projection returns what the node is to be told, or nil for a node that isn't configured.
func (s *State) Projection(nodeID string) *Projection { panic("not written yet") }
