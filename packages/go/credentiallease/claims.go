package credentiallease

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const (
	maxClaims    = 8 << 10
	maxText      = 4 << 10
	leaseIDSize  = 16
	maxMethod    = 16
	maxScheme    = 32
	maxInt64     = 1<<63 - 1
	maxClaimPort = 65535
)

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
	LeaseID                [leaseIDSize]byte
	NodeID, RecipientKeyID string
	Generation, Projection uint64 // of the connection, of the configuration
	SlotRevision           uint64 // of the secret
	ProfileRevision        uint64
	RouteRevision          uint64
	IssuedAt               int64 // Unix milliseconds of the edge's clock, as are the next two
	NotBefore, ExpiresAt   int64
}

// claim is one field of LeaseClaims: its number on the wire, its name, and where it is in a Claims.
type claim struct {
	number int
	field  Field
	at     any // *string, *uint64, *uint32, *int64 or *[leaseIDSize]byte
	// checked says that an empty value isn't malformed: the comparison with the node's own word refuses it by name.
	checked bool
}

// table lists the fields of c in ascending order of their numbers. 16 and 26 are reserved.
func (c *Claims) table() [26]claim {
	return [26]claim{
		{1, FieldIssuer, &c.Issuer, false},
		{2, FieldKeyID, &c.KeyID, false},
		{3, FieldLeaseID, &c.LeaseID, false},
		{4, FieldPrincipal, &c.Principal, true},
		{5, FieldRoute, &c.Route, true},
		{6, FieldSlot, &c.Slot, true},
		{7, FieldProfile, &c.Profile, true},
		{8, FieldAdapter, &c.Adapter, true},
		{9, FieldTarget, &c.Target, true},
		{10, FieldNodeID, &c.NodeID, false},
		{11, FieldRecipientKey, &c.RecipientKeyID, false},
		{12, FieldConnection, &c.Generation, false},
		{13, FieldProjection, &c.Projection, false},
		{14, FieldRunID, &c.RunID, true},
		{15, FieldSlotRevision, &c.SlotRevision, false},
		{17, FieldProfile, &c.ProfileRevision, false},
		{18, FieldRoute, &c.RouteRevision, false},
		{19, FieldIssuedAt, &c.IssuedAt, false},
		{20, FieldNotBefore, &c.NotBefore, false},
		{21, FieldExpiresAt, &c.ExpiresAt, false},
		{22, FieldHeader, &c.Header, true},
		{23, FieldScheme, &c.Scheme, true},
		{24, FieldOrigin, &c.Origin, true},
		{25, FieldMethod, &c.Method, true},
		{27, FieldAttempt, &c.Attempt, true},
		{28, FieldPath, &c.Path, true},
	}
}

// encode returns the claims in canonical form.
func (c *Claims) encode() []byte {
	b := make([]byte, 0, 512)
	for _, f := range c.table() {
		switch v := f.at.(type) {
		case *string:
			b = appendBytes(b, f.number, *v)
		case *uint64:
			b = appendUint(b, f.number, *v)
		case *uint32:
			b = appendUint(b, f.number, uint64(*v))
		case *int64:
			b = appendUint(b, f.number, uint64(*v))
		case *[leaseIDSize]byte:
			b = appendBytes(b, f.number, v[:])
		}
	}
	return b
}

// decodeClaims reads claims in canonical form and checks what can be said of them by themselves.
func decodeClaims(b []byte) (*Claims, error) {
	if len(b) > maxClaims {
		return nil, refuse(Malformed, FieldClaims)
	}
	c, r := new(Claims), &wireReader{rest: b}
	for _, f := range c.table() {
		if !r.claim(f) {
			return nil, refuse(Malformed, f.field)
		}
	}
	if !r.end() {
		return nil, refuse(Malformed, FieldClaims)
	}
	if err := c.form(); err != nil {
		return nil, err
	}
	return c, nil
}

// claim reads one field and reports whether it is whole, and there if it has to be.
func (r *wireReader) claim(f claim) bool {
	present := false
	switch v := f.at.(type) {
	case *string:
		*v = r.text(f.number, maxText)
		present = *v != ""
	case *uint64:
		*v = r.uint(f.number)
		present = *v != 0
	case *uint32:
		n := r.uint(f.number)
		*v, present = uint32(n), n != 0
		r.bad = r.bad || n > 1<<32-1
	case *int64:
		n := r.uint(f.number)
		*v, present = int64(n), n != 0
		r.bad = r.bad || n > maxInt64
	case *[leaseIDSize]byte:
		id := r.bytes(f.number, leaseIDSize)
		present = copy(v[:], id) == leaseIDSize
	}
	return !r.bad && (present || f.checked)
}

// form checks what needs no knowledge of the node. Fields that are compared may be empty here.
func (c *Claims) form() error {
	switch {
	case c.ExpiresAt <= c.NotBefore:
		return refuse(Malformed, FieldExpiresAt)
	case c.Method != "" && !isMethod(c.Method):
		return refuse(Malformed, FieldMethod)
	case c.Path != "" && !isPath(c.Path):
		return refuse(Malformed, FieldPath)
	}
	return nil
}

// complete refuses claims with an empty field: what no node would take isn't issued.
func (c *Claims) complete() error {
	for _, f := range c.table() {
		var empty bool
		switch v := f.at.(type) {
		case *string:
			empty = *v == "" && f.field != FieldScheme || len(*v) > maxText
		case *uint64:
			empty = *v == 0
		case *uint32:
			empty = *v == 0
		case *int64:
			empty = *v <= 0
		}
		if empty {
			return refuse(Malformed, f.field)
		}
	}
	return c.form()
}

// differs returns the first field in which the lease isn't for what the node is about to do. Two empty values don't
// agree: they mean that neither side knows.
func (b *Binding) differs(own *Binding) Field {
	for _, f := range [...]struct {
		field     Field
		said, own string
	}{
		{FieldPrincipal, b.Principal, own.Principal},
		{FieldRoute, b.Route, own.Route},
		{FieldSlot, b.Slot, own.Slot},
		{FieldProfile, b.Profile, own.Profile},
		{FieldAdapter, b.Adapter, own.Adapter},
		{FieldTarget, b.Target, own.Target},
		{FieldRunID, b.RunID, own.RunID},
		{FieldHeader, b.Header, own.Header},
		{FieldOrigin, b.Origin, own.Origin},
		{FieldMethod, b.Method, own.Method},
		{FieldPath, b.Path, own.Path},
	} {
		if f.said != f.own || f.said == "" {
			return f.field
		}
	}
	switch {
	case b.Scheme != own.Scheme:
		return FieldScheme
	case b.Attempt != own.Attempt || b.Attempt == 0:
		return FieldAttempt
	}
	return FieldNone
}

// allowed refuses where no secret may go although both sides agree on it.
func (b *Binding) allowed() error {
	switch {
	case !isHeader(b.Header):
		return refuse(HeaderRefused, FieldHeader)
	case !isScheme(b.Scheme):
		return refuse(HeaderRefused, FieldScheme)
	case strings.HasPrefix(b.Origin, "http://"):
		return refuse(PlaintextOriginRefused, FieldOrigin)
	case !isOrigin(b.Origin):
		return refuse(OriginRefused, FieldOrigin)
	}
	return nil
}

// isHeader knows the headers that providers read keys from. A key in a query isn't supported: it ends in logs
// (CVE-2024-6587 and BerriAI/litellm#8075 are leaks of that kind).
func isHeader(name string) bool {
	switch name {
	case "Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key":
		return true
	}
	return false
}

func isScheme(s string) bool { return len(s) <= maxScheme && !strings.ContainsFunc(s, notAlphanumeric) }

func isMethod(s string) bool {
	return len(s) <= maxMethod && !strings.ContainsFunc(s, func(c rune) bool { return c < 'A' || c > 'Z' })
}

func isPath(s string) bool {
	return s[0] == '/' && visible([]byte(s)) && !strings.ContainsAny(s, `?#\`)
}

func notAlphanumeric(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-'
}

// isOrigin accepts exactly one spelling of an origin, so that equal text is the same place and nothing else is.
func isOrigin(s string) bool {
	hostPort, ok := strings.CutPrefix(s, "https://")
	if !ok {
		return false
	}
	host, port, err := net.SplitHostPort(hostPort)
	n, errPort := strconv.Atoi(port)
	if err != nil || errPort != nil || n < 1 || n > maxClaimPort || net.JoinHostPort(host, strconv.Itoa(n)) != hostPort {
		return false
	}
	if strings.Contains(host, ":") {
		ip, err := netip.ParseAddr(host)
		return err == nil && ip.Zone() == "" && ip.String() == host
	}
	return host != "" && !strings.HasPrefix(host, ".") && !strings.HasPrefix(host, "-") &&
		!strings.ContainsFunc(host, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.'
		})
}
