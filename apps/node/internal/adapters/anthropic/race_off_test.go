//go:build !race

package anthropic

const racing = false
