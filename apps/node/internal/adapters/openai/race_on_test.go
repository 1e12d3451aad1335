//go:build race

package openai

// racing is true under the race detector, where a buffer that grows is made twice.
const racing = true
