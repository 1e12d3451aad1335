package credentiallease

// Binding is what a lease is for: the request that it may be used in, and what of it the node is about to send. The
// edge signs it; the node fills another from what it is itself about to do, and each field must be equal and not empty
// (Scheme may be empty).
type Binding struct {
	Principal string // who asks; the edge's own word where callers have no names
	Route     string
	Slot      string
	Profile   string
	Adapter   string
	Target    string // the provider's name of the model
	RunID     string // of a run or a tunnel
	Attempt   uint32 // from 1
	Header    string // Authorization, X-Api-Key, Api-Key or X-Goog-Api-Key
	Scheme    string // "Bearer" before the secret, "" = the secret alone
	Origin    string // "https://host:port", lower case, the port always there
	Method    string // "POST"
	Path      string // the exact escaped path, no query
}

// Claims is everything that a lease says: LeaseClaims on the wire.
type Claims struct {
	Binding
	Issuer, KeyID          string // the edge and its signing key
	LeaseID                [16]byte
	NodeID, RecipientKeyID string
	Generation, Projection uint64
	SlotRevision           uint64
	ProfileRevision        uint64
	RouteRevision          uint64
	IssuedAt               int64 // Unix milliseconds of the edge's clock, as are the others
	NotBefore, ExpiresAt   int64
}
