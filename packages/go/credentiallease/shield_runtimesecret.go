//go:build goexperiment.runtimesecret

package credentiallease

import "runtime/secret"

// Shielded reports whether this build erases what [Shield] leaves behind.
const Shielded = true

// Shield runs f. In a build with GOEXPERIMENT=runtimesecret (linux on amd64 and arm64) stack and registers are erased
// when it returns, and what f allocated when it is freed. f must not call into C (Go 1.26 crashes, golang/go#78999),
// must not start goroutines with a secret, and must copy results into memory that was made outside.
func Shield(f func()) { secret.Do(f) }
