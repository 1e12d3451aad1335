package loopback

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/fnv"
	"math"
	"net/http"
	"strings"
)

// The sizes of a vector.
const (
	defaultDimensions = 8
	maxDimensions     = 8192
)

// embed answers POST /v1/embeddings: the same text gets the same vector of length 1.
func (p *Provider) embed(w *writer, body []byte) error {
	x, done, err := p.take(w, body, func(r *request) ([]string, string, error) { return lastOf(embedTexts(r.Input)) })
	if done {
		return err
	}
	size := defaultDimensions
	if x.Dimensions != nil {
		size = *x.Dimensions
	}
	if size < 1 || size > maxDimensions {
		return w.refuse(http.StatusBadRequest, "dimensions: must be a number from 1 to "+itoa(maxDimensions))
	}
	data := make([]any, len(x.prompt))
	for i, text := range x.prompt {
		row := object{"object": "embedding", "index": i, "embedding": vector(text, size)}
		if x.EncodingFormat == "base64" {
			row["embedding"] = packed(vector(text, size))
		}
		data[i] = row
	}
	c := x.counts(0)
	c.output, c.reasoning = 0, 0
	out := object{"object": "list", "model": x.Model, "data": data}
	if !x.noUsage {
		out["usage"] = object{"prompt_tokens": c.input, "total_tokens": c.input}
	}
	if err := w.deliver(&x.plan, 0, out); err != nil {
		return err
	}
	return w.count(&x.plan, c)
}

// embedTexts reads an input: a text, a list of texts, or tokens, which are as good as a text here.
func embedTexts(raw json.RawMessage) ([]string, error) {
	var list texts
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		return list, nil
	}
	var tokens []int
	if json.Unmarshal(raw, &tokens) == nil && len(tokens) > 0 {
		return []string{strings.Trim(string(raw), "[]")}, nil
	}
	return nil, errors.New("input: missing, empty, or of another form")
}

// vector returns numbers that depend on the text alone.
func vector(text string, size int) []float32 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	state, sum := h.Sum64(), 0.0
	values := make([]float64, size)
	for i := range values {
		state = state*6364136223846793005 + 1442695040888963407
		values[i] = float64(int64(state>>11))/(1<<52) - 1
		sum += values[i] * values[i]
	}
	out := make([]float32, size)
	for i, v := range values {
		out[i] = float32(v / math.Sqrt(max(sum, 1e-9)))
	}
	return out
}

// packed is the base64 form: little-endian floats.
func packed(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return base64.StdEncoding.EncodeToString(b)
}
