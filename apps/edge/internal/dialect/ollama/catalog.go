package ollama

import (
	"encoding/json"
	"time"

	"iop/apps/edge/internal/dialect"
)

// APIVersion is the version of Ollama whose API this package speaks; its clients ask for features by version.
const APIVersion = "0.17.4"

// Model is what there is to say of one model in a list or an answer to /api/show.
type Model struct {
	Name    string
	Kind    string          // of the adapter that serves it: openai, anthropic, …; "" = unknown
	Loaded  bool            // in memory now
	Context int64           // longest context in tokens, 0 = unknown
	Entry   json.RawMessage // what an Ollama says of it in the same list, as Entries returns it; nil = nothing
}

// Tags is the body of GET /api/tags. Since is when the models without an entry count as changed: when the program began.
func Tags(models []Model, since time.Time) []byte { return nil }

// Running is the body of GET /api/ps: those of the models that are loaded.
func Running(models []Model) []byte { return nil }

// Version is the body of GET /api/version. A version of "" is APIVersion.
func Version(version string) []byte { return nil }

// Show is the body of the answer to POST /api/show for a model that no Ollama serves.
func Show(m Model, since time.Time) []byte { return nil }

// ParseShow reads the body of POST /api/show: the model that is asked for.
func ParseShow(body []byte) (model string, ref *dialect.Refusal) { return "", nil }

// Entries reads an Ollama's answer to /api/tags or /api/ps: what it says of each model, by name. An answer that isn't
// one has none.
func Entries(answer []byte) map[string]json.RawMessage { return nil }
