package ollama

import (
	"encoding/json"
	"math"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// options is how the answer is generated. What Ollama knows and a run has no word for is refused by name, whatever its
// value: at another provider the answer would be another one.
type options execution.Options

// Why options are refused.
const (
	whySampler = "it steers Ollama's sampler, which this model's provider doesn't have"
	whyLoader  = "it says how an Ollama loads a model; this model's provider is set up where it runs"
)

// ReadJSON implements [dialect.Reader].
func (o *options) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var predict, seed *int64
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "num_predict":
			return whole{&predict}
		case "seed":
			return whole{&seed}
		case "top_k":
			return whole{&o.TopK}
		case "temperature":
			return &o.Temperature
		case "top_p":
			return &o.TopP
		case "frequency_penalty":
			return &o.FrequencyPenalty
		case "presence_penalty":
			return &o.PresencePenalty
		case "stop":
			return &o.Stop
		case "num_keep", "min_p", "typical_p", "tfs_z", "repeat_last_n", "repeat_penalty", "penalize_newline",
			"mirostat", "mirostat_tau", "mirostat_eta":
			return dialect.Unsupported{Why: whySampler}
		case "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "numa", "low_vram",
			"f16_kv", "logits_all", "vocab_only", "embedding_only", "use_imagegen_runner":
			return dialect.Unsupported{Why: whyLoader}
		}
		return nil
	})
	// Ollama's own "no limit" (-1, -2, and 0 too) and "any seed" (-1): the provider's choice.
	if predict != nil && *predict > 0 {
		o.MaxTokens = predict
	}
	if seed != nil && *seed != -1 {
		o.Seed = seed
	}
	return ref
}

// whole reads a whole number; some languages write it with a point.
type whole struct{ into **int64 }

// ReadJSON implements [dialect.Reader].
func (w whole) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var n int64
	if err := json.Unmarshal(raw, &n); err != nil {
		var f float64
		if json.Unmarshal(raw, &f) != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return dialect.Refuse(at, at+": must be a whole number")
		}
		n = int64(f)
	}
	*w.into = &n
	return nil
}
