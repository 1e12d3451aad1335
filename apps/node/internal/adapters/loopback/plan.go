package loopback

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// plan is what an answer does.
type plan struct {
	tokens    int           // -1 = the sentence once
	delay     time.Duration // before each token
	paced     bool          // delay was asked for, so it holds for whole answers too
	first     time.Duration
	reasoning int
	tools     int // calls
	noUsage   bool
	fail      int // status, 0 = none
	cut       int // tokens, -1 = never
	stall     int // tokens, -1 = never
	garbage   bool
	mark      string
}

// The bounds of the values: an answer stays a bounded piece of work.
const (
	maxTokens = 1_000_000
	maxPause  = time.Hour
	maxCalls  = 64
	maxMark   = 128
)

const defaultDelay = 20 * time.Millisecond

func newPlan() plan { return plan{tokens: -1, delay: defaultDelay, cut: -1, stall: -1} }

// directives returns what stands behind the first "loopback:" of a text, up to the end of its line.
func directives(text string) string {
	_, rest, _ := strings.Cut(text, "loopback:")
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

// apply changes the plan by directives. An error names the one that is wrong.
func (p *plan) apply(text string) error {
	for _, word := range strings.Fields(text) {
		name, value, given := strings.Cut(word, "=")
		if err := p.set(name, value, given); err != nil {
			return fmt.Errorf("loopback: %s: %w", word, err)
		}
	}
	return nil
}

func (p *plan) set(name, value string, given bool) (err error) {
	switch name {
	case "tokens":
		p.tokens, err = number(value, 0, maxTokens)
	case "delay":
		p.paced = true
		p.delay, err = pause(value)
	case "first":
		p.first, err = pause(value)
	case "reasoning":
		p.reasoning, err = number(value, 0, maxTokens)
	case "tools":
		p.tools = 1
		if given {
			p.tools, err = number(value, 0, maxCalls)
		}
	case "usage":
		if p.noUsage = value == "off"; value != "off" && value != "on" {
			err = fmt.Errorf("must be on or off")
		}
	case "fail":
		p.fail, err = number(value, 400, 599)
	case "cut":
		p.cut, err = number(value, 0, maxTokens)
	case "stall":
		p.stall, err = number(value, 0, maxTokens)
	case "garbage":
		if p.garbage = true; given {
			err = fmt.Errorf("takes no value")
		}
	case "mark":
		if p.mark = value; value == "" || len(value) > maxMark {
			err = fmt.Errorf("must have 1 to %d bytes", maxMark)
		}
	default:
		err = fmt.Errorf("unknown directive")
	}
	return err
}

func number(value string, from, to int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < from || n > to {
		return 0, fmt.Errorf("must be a number from %d to %d", from, to)
	}
	return n, nil
}

func pause(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > maxPause {
		return 0, fmt.Errorf("must be a duration up to %v, as in 20ms", maxPause)
	}
	return d, nil
}
