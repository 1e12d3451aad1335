package anthropic

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// versionHeader names the version of the API that a request is written in.
const versionHeader = "Anthropic-Version"

// wording is how an adapter is configured to say what a run leaves open.
type wording struct {
	version   string // of the API
	maxTokens int64  // of an answer, when the run tells none: the API demands it
	adaptive  bool   // efforts go by their word, and the model decides how much it thinks
}

func newWording() wording { return wording{version: "2023-06-01", maxTokens: 4096} }

// set reads one of the adapter's options:
//
//	version     the API's version, 2023-06-01 unless told
//	max_tokens  the longest answer of a run that tells none, 4096 unless told
//	thinking    "adaptive" for models that take an effort by its word and no budget of tokens, "budget" unless told
func (w *wording) set(name, value string) error {
	switch name {
	case "version":
		if !isDate(value) {
			return errors.New("version: must be a date, as in 2023-06-01")
		}
		w.version = value
	case "max_tokens":
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 1 {
			return errors.New("max_tokens: must be a number of tokens, at least 1")
		}
		w.maxTokens = n
	case "thinking":
		if value != "budget" && value != "adaptive" {
			return errors.New("thinking: must be budget or adaptive")
		}
		w.adaptive = value == "adaptive"
	default:
		return fmt.Errorf("%q is unknown; the anthropic kind has version, max_tokens and thinking", name)
	}
	return nil
}

// isDate reports whether s has the form of a date.
func isDate(s string) bool {
	const form = "0000-00-00"
	digit := func(r rune) rune {
		if '0' <= r && r <= '9' {
			return '0'
		}
		return r
	}
	return strings.Map(digit, s) == form
}
