package credential

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"iop/packages/go/credentiallease"
)

// markSize is how many hex digits of a key's HMAC tell it from others; fingerprintSize of them are shown.
const (
	markSize        = 32
	fingerprintSize = 8
)

// key is a provider key in memory. It is cleared when its last user releases it. It is never printed: what it holds stands
// behind a type and a function that no printer looks through.
type key struct {
	mark   string // tells it from other keys, also after a restart; says nothing of it without the edge's own key
	length int
	secret credentiallease.Secret
	forms  func() [][]byte // in which an answer may repeat it

	mu    sync.Mutex
	users int
}

// newKey takes over value, which is a key by every rule; see [resolver.read]. The caller is its first user.
func newKey(install, value []byte) (*key, error) {
	k := &key{mark: markOf(install, value), length: len(value), users: 1}
	forms := formsOf(value)
	k.forms = func() [][]byte { return forms }
	var err error
	if k.secret, err = credentiallease.NewSecret(value); err != nil {
		clearAll(forms)
		return nil, err
	}
	return k, nil
}

// hold makes the caller a user. It must be called by one, or under the lock of one that can't release it meanwhile.
func (k *key) hold() *key {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.users++
	return k
}

// release ends one use; the last one clears the key. A nil key has no users.
func (k *key) release() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.users--; k.users > 0 {
		return
	}
	k.secret.Zero()
	clearAll(k.forms())
	k.forms = func() [][]byte { return nil }
}

func clearAll(all [][]byte) {
	for _, b := range all {
		clear(b)
	}
}

// markOf is HMAC-SHA256 with the edge's own key, cut.
func markOf(install, value []byte) string {
	h := hmac.New(sha256.New, install)
	h.Write(value)
	return hex.EncodeToString(h.Sum(nil))[:markSize]
}

// fingerprint is what operators see of a mark.
func fingerprint(mark string) string { return mark[:min(len(mark), fingerprintSize)] }
