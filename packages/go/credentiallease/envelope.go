package credentiallease

import (
	"crypto/ed25519"
	"crypto/hpke"
	"encoding/binary"
)

// Version names the whole suite: HPKE base mode with ML-KEM-768 and X25519 (0x647a), HKDF-SHA256 and AES-256-GCM, then
// Ed25519. There is one suite for a version and nothing to negotiate.
const Version = 1

const (
	sealInfo   = "iop.credlease.v1.hpke"
	signDomain = "iop.credlease.v1.sig"

	encSize       = 1120
	maxCiphertext = 8 << 10
	maxKeyID      = 64 // of any version
	lengthSize    = 2
	padTo         = 128 // hides the length of a secret
	tagSize       = 16
)

// envelope is CredentialLease: claims and ciphertext as they were carried. Its slices are parts of what was decoded.
type envelope struct {
	version uint32
	kid     string
	claims  []byte
	enc     []byte
	sealed  []byte
	sig     []byte
}

func (e *envelope) encode() []byte {
	b := make([]byte, 0, len(e.kid)+len(e.claims)+len(e.enc)+len(e.sealed)+len(e.sig)+32)
	b = appendUint(b, 1, uint64(e.version))
	b = appendBytes(b, 2, e.kid)
	b = appendBytes(b, 3, e.claims)
	b = appendBytes(b, 4, e.enc)
	b = appendBytes(b, 5, e.sealed)
	return appendBytes(b, 6, e.sig)
}

// decodeEnvelope takes a lease apart. Whether the version is known comes before what belongs to the version.
func decodeEnvelope(b []byte) (*envelope, error) {
	r := &wireReader{rest: b}
	version := r.uint(1)
	e := &envelope{
		version: uint32(version),
		kid:     r.text(2, maxKeyID),
		claims:  r.bytes(3, maxClaims),
		enc:     r.bytes(4, maxCiphertext),
		sealed:  r.bytes(5, maxCiphertext),
		sig:     r.bytes(6, maxText),
	}
	switch {
	case !r.end() || version == 0:
		return nil, refuse(Malformed, FieldLease)
	case version != Version:
		return nil, refuse(UnsupportedVersion, FieldNone)
	case len(e.kid) != keyIDSize:
		return nil, refuse(Malformed, FieldKeyID)
	case len(e.claims) == 0:
		return nil, refuse(Malformed, FieldClaims)
	case len(e.enc) != encSize:
		return nil, refuse(Malformed, FieldEnc)
	case len(e.sealed) < padTo+tagSize || (len(e.sealed)-tagSize)%padTo != 0:
		return nil, refuse(Malformed, FieldCiphertext)
	case len(e.sig) != ed25519.SignatureSize:
		return nil, refuse(Malformed, FieldSignature)
	}
	return e, nil
}

// signed is what the signature covers: everything but itself.
func (e *envelope) signed() []byte {
	return pae([]byte(signDomain), binary.BigEndian.AppendUint32(nil, e.version), []byte(e.kid), e.claims, e.enc, e.sealed)
}

// pae is pre-authentication encoding: the number of parts, then each with its length, all in 64 bits, little-endian. No
// two lists of parts have the same encoding.
func pae(parts ...[]byte) []byte {
	size := 8
	for _, p := range parts {
		size += 8 + len(p)
	}
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, size), uint64(len(parts)))
	for _, p := range parts {
		out = append(binary.LittleEndian.AppendUint64(out, uint64(len(p))), p...)
	}
	return out
}

// seal encrypts a secret to a recipient. The claims are authenticated with it: a ciphertext can't be moved to others,
// and whoever signs other claims over it makes a lease that doesn't open.
func seal(to hpke.PublicKey, claims []byte, secret Secret) (enc, sealed []byte, err error) {
	var plain []byte
	if !secret.Use(func(value []byte) { plain = pad(value) }) {
		return nil, nil, refuse(BadSecret, FieldNone)
	}
	defer clear(plain)
	return sealPlain(to, claims, plain)
}

func sealPlain(to hpke.PublicKey, claims, plain []byte) (enc, sealed []byte, err error) {
	Shield(func() {
		var s *hpke.Sender
		if enc, s, err = hpke.NewSender(to, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(sealInfo)); err == nil {
			sealed, err = s.Seal(claims, plain)
		}
	})
	return enc, sealed, err
}

// open decrypts into page and returns the secret's length. What HPKE allocated for the plaintext is cleared.
func (e *envelope) open(private hpke.PrivateKey, page []byte) (n int, err error) {
	err = refuse(OpenFailed, FieldNone)
	Shield(func() {
		r, e1 := hpke.NewRecipient(e.enc, private, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(sealInfo))
		if e1 != nil {
			return
		}
		plain, e1 := r.Open(e.claims, e.sealed)
		defer clear(plain)
		if e1 != nil {
			return
		}
		secret, ok := unpad(plain)
		switch {
		case !ok:
			err = refuse(BadSecret, FieldNone)
		case len(secret) > len(page):
			err = refuse(InjectionFailed, FieldHeadTooLarge)
		default:
			n, err = copy(page, secret), nil
		}
	})
	return n, err
}

// pad puts the length before a secret and zeros behind it.
func pad(secret []byte) []byte {
	plain := make([]byte, (lengthSize+len(secret)+padTo-1)/padTo*padTo)
	binary.BigEndian.PutUint16(plain, uint16(len(secret)))
	copy(plain[lengthSize:], secret)
	return plain
}

// unpad returns the part of plain that is the secret. Its bytes must be fit for a header, also when an edge that is
// trusted sealed others: a line end in a secret would be a header of its own.
func unpad(plain []byte) (secret []byte, ok bool) {
	if len(plain) < lengthSize {
		return nil, false
	}
	n := int(binary.BigEndian.Uint16(plain))
	if n < MinSecret || n > MaxSecret || (lengthSize+n+padTo-1)/padTo*padTo != len(plain) {
		return nil, false
	}
	secret = plain[lengthSize : lengthSize+n]
	var rest byte
	for _, c := range plain[lengthSize+n:] {
		rest |= c
	}
	return secret, rest == 0 && visible(secret)
}
