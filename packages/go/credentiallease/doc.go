// Package credentiallease is the envelope of a lease: permission to use one provider key once, made by an edge for one
// request on one connection of one node.
//
// The edge seals the key to the node's recipient key with HPKE and signs the result with Ed25519 ([Issuer.Issue]). The
// node checks everything that can be checked without its private key before it admits the request ([Guard.Verify]), and
// opens the key only inside the write that sends it ([Held.Redeem]). In between, [Guard.Revoke] and [Guard.Close] stop
// what isn't committed. The words, promises and refusals stand in agent-contract/inner/credential-lease.md.
//
// What the package doesn't do: it reads no clock (time is an argument, see [Time] and [Clock]), does no I/O, keeps
// nothing outside the values that it hands out, and knows neither protobuf nor a logger. Where secrets come from, who
// may have them, and how one gets into an HTTP request belongs to others.
//
// # What is zeroed
//
// Redeem clears the page that it was given and the buffer into which HPKE decrypted; Issue clears the padded copy that
// it sealed. [Secret.Zero], [SigningKey.Drop] and [RecipientKey.Drop] clear what they hold. What crypto/hpke, ML-KEM
// and X25519 derive on the way can't be reached: in a build with GOEXPERIMENT=runtimesecret it is erased by the runtime
// ([Shield]), in others it stays until the memory is used again.
package credentiallease
