package config

import "time"

// Edge is the checked configuration of an Edge. It is never changed after loading; share it by pointer, don't modify
// it. A field's key, default and whether this version supports it stand in its tag (see schema.go).
type Edge struct {
	// Path is the file that this was read from; paths inside the file are relative to its directory.
	Path string
	// Files are Path and the files that it names hashes in: a change of one of them is a change of the configuration.
	Files []string

	// Mode is how nodes prove who they are: dev (a token) or managed (a certificate and a token). Default dev.
	Mode string `yaml:"mode" default:"dev"`
	// Listen says where the Edge accepts connections.
	Listen Listen `yaml:"listen"`
	// TLS is the Edge's identity towards nodes, and whose nodes it lets in. Mode managed needs it; without that mode it
	// is refused. Default nil.
	TLS *EdgeTLS `yaml:"tls"`
	// InsecurePlaintext permits a node listener without TLS on an address that isn't loopback. Default false.
	InsecurePlaintext bool `yaml:"insecure_plaintext"`
	// StateDir is the directory of what the Edge must remember across restarts. It is made when it is missing.
	// Default ./state beside the file.
	StateDir string `yaml:"state_dir,path" default:"./state"`
	// Nodes are the nodes that may register, each with the adapters that it is told to run.
	Nodes []NodeRecord `yaml:"nodes"`
	// Principals are the callers and their API keys. Without any, the HTTP listener must be on loopback, and everyone
	// who reaches it is let in.
	Principals []Principal `yaml:"principals"`
	// Routes are the model names that callers may ask for, in the order of the file.
	Routes []Route `yaml:"routes"`
	// Profiles say how a provider is shown a key, and where that key may go.
	Profiles []Profile `yaml:"profiles"`
	// Slots are the providers' keys: where each comes from, and which nodes may use it. They need mode managed.
	Slots []Slot `yaml:"slots"`
	// Lease says how keys are lent to nodes.
	Lease Lease `yaml:"lease"`
	// CORS says which web pages may call the HTTP surfaces from a browser.
	CORS CORS `yaml:"cors"`
	// AdminKeyHashes are the SHA-256 hashes of the keys that open the admin listener, in hex, or file:PATH of a file
	// that holds one. Needed when the admin listener isn't on loopback.
	AdminKeyHashes []string `yaml:"admin_key_hashes,hash"`
	// Limits bound what callers and unknown peers can make the Edge hold.
	Limits Limits `yaml:"limits"`
	// Timers are the Edge's time limits.
	Timers EdgeTimers `yaml:"timers"`
	// Log says what is logged and how.
	Log Log `yaml:"log"`
}

// Listen says where the Edge accepts connections, as host:port. Port 0 takes a free one.
type Listen struct {
	// Nodes is the address that nodes dial. Default 127.0.0.1:7443.
	Nodes string `yaml:"nodes" default:"127.0.0.1:7443"`
	// HTTP is the address of the API surfaces. Default 127.0.0.1:8080.
	HTTP string `yaml:"http" default:"127.0.0.1:8080"`
	// Admin is the address of health, metrics and administration; empty turns it off. Default 127.0.0.1:8081.
	Admin string `yaml:"admin" default:"127.0.0.1:8081"`
	// HTTPTLS makes the HTTP listener speak TLS. Default nil: plain HTTP, for loopback or behind a proxy.
	HTTPTLS *TLSFiles `yaml:"http_tls"`
}

// TLSFiles names a certificate and its key.
type TLSFiles struct {
	// Cert is the path of the certificate chain, PEM.
	Cert string `yaml:"cert,path"`
	// Key is the path of the private key, PEM.
	Key string `yaml:"key,path"`
}

// EdgeTLS names the files of the Edge's identity. They are read again when they change.
type EdgeTLS struct {
	// Cert is the path of the Edge's certificate, PEM, with what leads from it to its CA.
	Cert string `yaml:"cert,path"`
	// Key is the path of its private key, PEM.
	Key string `yaml:"key,path"`
	// CA is the path of the CAs that nodes' certificates are checked by, PEM.
	CA string `yaml:"ca,path"`
	// TrustDomain is the SPIFFE trust domain that the Edge and all its nodes belong to.
	TrustDomain string `yaml:"trust_domain"`
}

// NodeRecord is one node that may register.
type NodeRecord struct {
	// ID names the node in logs, metrics and routes.
	ID string `yaml:"id"`
	// TokenHashes are the hashes of the tokens that this node may show; two of them make a rotation without a gap.
	TokenHashes []TokenHash `yaml:"token_hashes"`
	// SPIFFEID is the identity that the node's certificate must have in mode managed, byte for byte. Default in that
	// mode: spiffe://TRUST-DOMAIN/iop/node/ID.
	SPIFFEID string `yaml:"spiffe_id"`
	// RevokedSerials are serial numbers of certificates of this node that are refused though they are valid, in hex.
	RevokedSerials []string `yaml:"revoked_serials,serial"`
	// Enabled false refuses the node without forgetting it. Default true.
	Enabled bool `yaml:"enabled" default:"true"`
	// Labels are what routes select nodes by.
	Labels map[string]string `yaml:"labels"`
	// Adapters are the providers that the node is told to serve.
	Adapters []Adapter `yaml:"adapters"`
}

// TokenHash is one token that a node may show. Exactly one of sha256 and file is given in a file; after loading SHA256
// is always set.
type TokenHash struct {
	// SHA256 is the hash of the token in lower-case hex, as iop-edge token new prints it.
	SHA256 string `yaml:"sha256,hash"`
	// File is the path of a file that holds the hash.
	File string `yaml:"file,path"`
	// NotAfter is when the token stops being accepted, RFC 3339. Default: never.
	NotAfter time.Time `yaml:"not_after"`
}

// Adapter is one provider driver on one node.
type Adapter struct {
	// Name names the adapter on its node.
	Name string `yaml:"name"`
	// Kind is the driver: ollama, openai, anthropic, auto (an Ollama on its default port, 11434 of the node's own
	// machine), or loopback (built in, answers by itself).
	Kind string `yaml:"kind"`
	// BaseURL is where the provider listens, as the node sees it; with or without /v1 at its end.
	BaseURL string `yaml:"base_url"`
	// MaxConcurrency is how many executions the provider may have at once. Default 4.
	MaxConcurrency int `yaml:"max_concurrency" default:"4"`
	// Targets are the models to offer. Default: whatever the provider says that it has.
	Targets []string `yaml:"targets"`
	// AllowPaths are provider paths that callers may reach beyond those of the adapter's dialect; /* at the end stands
	// for all below it. Default: none.
	AllowPaths []string `yaml:"allow_paths"`
	// Options are settings of the driver, by its documentation. They hold no secret.
	Options map[string]string `yaml:"options"`
}

// Principal is one caller.
type Principal struct {
	// ID names the caller in logs and metrics.
	ID string `yaml:"id"`
	// KeyHashes are the SHA-256 hashes of the caller's API keys in hex, as iop-edge key new prints them, or file:PATH
	// of a file that holds one.
	KeyHashes []string `yaml:"key_hashes,hash"`
	// Routes are the models that the caller may ask for, as the routes name them. Default: all.
	Routes []string `yaml:"routes"`
	// Weight is the caller's share of contended places beside those of others: one of weight 3 gets three times the
	// place-seconds of one of weight 1. Default 1.
	Weight int `yaml:"weight" default:"1"`
	// Limits are the caller's own, whatever is free.
	Limits PrincipalLimits `yaml:"limits"`
}

// PrincipalLimits bound what one caller may ask for. What is over them is refused with 429.
type PrincipalLimits struct {
	// Concurrency is how many requests may run or wait at once. Default 0: no limit.
	Concurrency int `yaml:"concurrency"`
	// RequestsPerMinute is how many requests may begin within any minute. Default 0: no limit.
	RequestsPerMinute int `yaml:"requests_per_minute"`
	// TokensPerMinute is how many tokens, of requests and answers together, may be used within any minute. What runs counts
	// with what it is expected to use; an answer without counts is charged an estimate. Default 0: no limit.
	TokensPerMinute int `yaml:"tokens_per_minute"`
	// TokensPerDay is the same for each day (UTC). Default 0: no limit.
	TokensPerDay int `yaml:"tokens_per_day"`
}

// Route is one model name and the pool that serves it.
type Route struct {
	// Model is the name that callers ask for. "*" is every model that a ready adapter offers, under its own name.
	Model string `yaml:"model"`
	// Adapter is the name of the adapter that serves it. Default: any adapter that offers the target.
	Adapter string `yaml:"adapter"`
	// Target is what the adapter is asked to run. Default: the name asked for.
	Target string `yaml:"target"`
	// Nodes are the ids of the nodes that may serve it. Default: all, or those that Labels select.
	Nodes []string `yaml:"nodes"`
	// Labels select the nodes that may serve it: those that have all of them. Not together with Nodes.
	Labels map[string]string `yaml:"labels"`
	// Slot names the key that the provider is called with. It restricts the route to the slot's nodes. Default: none.
	Slot string `yaml:"slot"`
	// SlotNodes are the nodes of that slot, the only ones that serve the route then. It isn't read from the file.
	SlotNodes []string
	// Queue bounds how many callers wait for a place, and how long.
	Queue Queue `yaml:"queue"`
	// FirstByte is how long a provider may take from the end of the request to its response's head. Default 0: the
	// node's own limit.
	FirstByte time.Duration `yaml:"first_byte"`
	// Idle is how long a provider may pause inside a response. Default 0: the node's own limit.
	Idle time.Duration `yaml:"idle"`
	// Deadline bounds a whole request from its arrival. Default 0: none.
	Deadline time.Duration `yaml:"deadline"`
	// FailFast answers no_node at once while no node can serve the route, instead of waiting for one. Default false.
	FailFast bool `yaml:"fail_fast"`
}

// Profile says how a provider is shown a key, and where that key may go.
type Profile struct {
	// ID names the profile in slots.
	ID string `yaml:"id"`
	// Origin is the only place that the key is sent to: https://host:port. Default port 443, which is put in.
	Origin string `yaml:"origin"`
	// Paths are the requests that it may go with, as "POST /v1/chat/completions": the whole path as the provider sees it,
	// without the query.
	Paths []string `yaml:"paths"`
	// Header is the field that carries it: Authorization, X-Api-Key, Api-Key or X-Goog-Api-Key. Default Authorization.
	Header string `yaml:"header" default:"Authorization"`
	// Scheme stands before it: Bearer, or nothing. Default: Bearer in Authorization, nothing elsewhere.
	Scheme string `yaml:"scheme"`
}

// Slot is one provider key.
type Slot struct {
	// ID names the slot in routes, events and commands.
	ID string `yaml:"id"`
	// Source is where the key comes from: file:PATH, cred:NAME (systemd), env:NAME, or exec:[PROGRAM, ARGUMENT, ...].
	// A key in the file itself is refused.
	Source SecretSource `yaml:"source"`
	// Profile is the id of the profile by which it is used.
	Profile string `yaml:"profile"`
	// Nodes are the ids of the nodes that may be given it: a node that may use a key can steal it. Default: none.
	Nodes []string `yaml:"nodes"`
	// Refresh is how often the source is read again. Default 30s.
	Refresh time.Duration `yaml:"refresh" default:"30s"`
	// StaleMax is how long the last key is used when its source can't be read any more. Default 5m.
	StaleMax time.Duration `yaml:"stale_max" default:"5m"`
}

// SecretSource is where a secret comes from. It holds none.
type SecretSource struct {
	// Kind is file, cred, env or exec.
	Kind string
	// Name is the path of a file (absolute after loading), or the name of a credential or variable.
	Name string
	// Argv is the program and its arguments, of kind exec.
	Argv []string
}

// Lease says how keys are lent to nodes.
type Lease struct {
	// TTL is how long a lease may wait to be used. Default 60s; at most 2m.
	TTL time.Duration `yaml:"ttl" default:"60s"`
	// SigningKey is the path of the key that leases are signed with; it is made when it is missing. Default lease.key in
	// the state directory.
	SigningKey string `yaml:"signing_key,path"`
}

// Queue bounds the callers that wait for a place.
type Queue struct {
	// Depth is how many may wait; 0 lets none wait. Default 64.
	Depth int `yaml:"depth" default:"64"`
	// Wait is how long each may wait. Default 60s.
	Wait time.Duration `yaml:"wait" default:"60s"`
}

// CORS says which web pages may call the HTTP surfaces from a browser.
type CORS struct {
	// Origins are the pages' origins (scheme://host[:port]), or "*". Default: none.
	Origins []string `yaml:"origins"`
}

// Limits bound what callers and unknown peers can make the Edge hold.
type Limits struct {
	// Body is the longest request body in bytes. Default 64MiB.
	Body int64 `yaml:"body,size" default:"64MiB"`
	// BodyInMemory is the size in bytes up to which a request body stays in memory; a longer one goes to an unlinked
	// file. Default 256KiB.
	BodyInMemory int64 `yaml:"body_in_memory,size" default:"256KiB"`
	// BodyMemory is the budget in bytes for all request bodies and collected answers together, in memory and in files. One that is read
	// as a run counts three times, and 192 bytes for each JSON value. Beyond it callers are told overloaded. Default
	// 512MiB.
	BodyMemory int64 `yaml:"body_memory,size" default:"512MiB"`
	// Header is the longest request head in bytes. Default 32KiB, which is also the most.
	Header int64 `yaml:"header,size" default:"32KiB"`
	// Connections is how many connections of callers may be open, and how many of their requests may be in work (HTTP/2
	// has many on one connection); more are told overloaded. Default 4096.
	Connections int `yaml:"connections" default:"4096"`
	// SlowAnswers is how many answers may be whole at the Edge while their callers still read them: they hold memory
	// and no place. Beyond it those go that have been read for longest, after ten seconds at the earliest. Default 256.
	SlowAnswers int `yaml:"slow_answers" default:"256"`
	// Unregistered is how many node connections may be open that have not registered; more wait to be accepted.
	// Default 128.
	Unregistered int `yaml:"unregistered" default:"128"`
	// Handshakes is how many of those may be in their handshake at once. Default 64.
	Handshakes int `yaml:"handshakes" default:"64"`
}

// EdgeTimers are the Edge's time limits.
type EdgeTimers struct {
	// Heartbeat is the pause between two heartbeats on a link. Default 30s.
	Heartbeat time.Duration `yaml:"heartbeat" default:"30s"`
	// Dead is the silence after which a link is over. Default 45s.
	Dead time.Duration `yaml:"dead" default:"45s"`
	// Handshake bounds a node's whole registration, the probe of a predecessor included. Default 10s.
	Handshake time.Duration `yaml:"handshake" default:"10s"`
	// Probe is how long an old connection may take to show that it lives when its node registers again. Default 3s.
	Probe time.Duration `yaml:"probe" default:"3s"`
	// ReadyLimit is how long a registered node may take to become ready before that is reported. Default 60s.
	ReadyLimit time.Duration `yaml:"ready_limit" default:"60s"`
	// ControlOpen is how long an accepted node may take to open its control stream. Default 5s.
	ControlOpen time.Duration `yaml:"control_open" default:"5s"`
	// DispatchLimit is how long a node may take to accept or reject what it was sent. Default 10s.
	DispatchLimit time.Duration `yaml:"dispatch_limit" default:"10s"`
	// ConfirmLimit is how long a node may take from a run's outcome to the confirmation that it ended. Default 60s.
	ConfirmLimit time.Duration `yaml:"confirm_limit" default:"60s"`
	// WriteIdle is how long one write to a caller may take before it counts as gone. Default 60s.
	WriteIdle time.Duration `yaml:"write_idle" default:"60s"`
	// TerminalWait is how long a run's last message may lag behind the confirmation that it ended. Default 10s.
	TerminalWait time.Duration `yaml:"terminal_wait" default:"10s"`
	// StreamReset is how long a closed stream may wait for its other side before it is reset. Default 10s.
	StreamReset time.Duration `yaml:"stream_reset" default:"10s"`
	// Drain is how long running requests may go on after the first signal to stop. Default 30s.
	Drain time.Duration `yaml:"drain" default:"30s"`
	// HeaderRead is how long a caller may take to send a request's head. Default 10s.
	HeaderRead time.Duration `yaml:"header_read" default:"10s"`
	// DetachedLimit is how long a background run may lack its node's connection before it counts as lost. Default 1h.
	DetachedLimit time.Duration `yaml:"detached_limit" default:"1h"`
}

// Log says what is logged and how.
type Log struct {
	// Level is the least severe level that is logged: trace, debug, info, warn or error. Default info.
	Level string `yaml:"level" default:"info"`
	// Format is json, console, or auto: console on a terminal, json elsewhere. Default auto.
	Format string `yaml:"format" default:"auto"`
}
