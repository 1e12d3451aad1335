//go:build race

package anthropic

// racing is true under the race detector, where a buffer that grows is made twice.
const racing = true
