package config

import "time"

// Node is the checked configuration of a node. It is never changed after loading; share it by pointer, don't modify it.
type Node struct {
	// Path is the file that this was read from; paths inside the file are relative to its directory.
	Path string
	// PinnedCA is the SHA-256 of the CA certificate that the token's join string names, in hex; "" where it names none.
	PinnedCA string

	// Edges are the addresses of the Edges to dial, as host:port. One link is kept to each.
	Edges []string `yaml:"edges"`
	// Token is the secret that this node registers with; always the bare token, also when the source holds a join
	// string. In the file it is file:PATH, env:NAME or cred:NAME (a systemd credential), never the secret itself.
	Token Secret `yaml:"token"`
	// TLS is the node's identity, and the Edge's that it expects. Needed by an Edge in mode managed. Default nil: the
	// link is plaintext.
	TLS *NodeTLS `yaml:"tls"`
	// DataDir is the directory of what the node must remember across restarts. It is made when it is missing.
	// Default ./data beside the file.
	DataDir string `yaml:"data_dir,path" default:"./data"`
	// Admin is the node's own health and metrics listener.
	Admin NodeAdmin `yaml:"admin"`
	// Proxy is an HTTP proxy that the Edges are reached through, by CONNECT: http://HOST:PORT. It resolves their names.
	// Providers are never reached through it. Default empty: none, whatever the environment says.
	Proxy string `yaml:"proxy"`
	// ProxyCredentials is what the proxy is shown, USER:PASSWORD; in the file it is file:PATH, env:NAME or cred:NAME. Default:
	// none.
	ProxyCredentials Secret `yaml:"proxy_credentials"`
	// Timers are the node's time limits.
	Timers NodeTimers `yaml:"timers"`
	// Log says what is logged and how.
	Log Log `yaml:"log"`
}

// NodeTLS names the files of the node's identity. They are read again when they change.
type NodeTLS struct {
	// Cert is the path of the node's certificate, PEM, with what leads from it to its CA.
	Cert string `yaml:"cert,path"`
	// Key is the path of its private key, PEM.
	Key string `yaml:"key,path"`
	// CA is the path of the CAs that the Edge's certificate is checked by, PEM.
	CA string `yaml:"ca,path"`
	// EdgeSPIFFEID is the identity that the Edge's certificate must have, byte for byte; the same for all Edges of this
	// node.
	EdgeSPIFFEID string `yaml:"edge_spiffe_id"`
}

// NodeAdmin is the node's own listener.
type NodeAdmin struct {
	// Listen is the address of health, metrics and status, on loopback; empty turns it off. Default empty.
	Listen string `yaml:"listen"`
}

// NodeTimers are the node's time limits.
type NodeTimers struct {
	// FirstByte is how long a provider may take from the end of the request to its response's head, where the route
	// doesn't say. Default 10m.
	FirstByte time.Duration `yaml:"first_byte" default:"10m"`
	// Idle is how long a provider may pause inside a response, where the route doesn't say. Default 5m.
	Idle time.Duration `yaml:"idle" default:"5m"`
	// AdapterStop is how long an adapter may take to return after a cancel before it is abandoned. Default 10s.
	AdapterStop time.Duration `yaml:"adapter_stop" default:"10s"`
	// Linger is how long an answer whose reader is slow is kept after its execution ended. Default 10m.
	Linger time.Duration `yaml:"linger" default:"10m"`
	// Drain is how long running executions may go on after the first signal to stop. Default 30s.
	Drain time.Duration `yaml:"drain" default:"30s"`
	// AdapterBuild bounds the building of all adapters; what isn't built by then is unavailable. Default 30s.
	AdapterBuild time.Duration `yaml:"adapter_build" default:"30s"`
	// OpenRead is how long the head of a work stream may take to arrive. Default 10s.
	OpenRead time.Duration `yaml:"open_read" default:"10s"`
	// Connect bounds the dial to a provider. Default 5s.
	Connect time.Duration `yaml:"connect" default:"5s"`
	// Handshake bounds the dial to an Edge and the registration there, each. Default 10s.
	Handshake time.Duration `yaml:"handshake" default:"10s"`
	// ProbeInterval is the pause between two looks at what a provider has. Default 15s.
	ProbeInterval time.Duration `yaml:"probe_interval" default:"15s"`
	// BackoffStart is the bound of the first random wait before dialing again; it doubles. Default 1s.
	BackoffStart time.Duration `yaml:"backoff_start" default:"1s"`
	// BackoffMax is the highest bound of that wait. Default 30s.
	BackoffMax time.Duration `yaml:"backoff_max" default:"30s"`
	// BackoffReset is how long a link must have lived for the wait to start small again. Default 30s.
	BackoffReset time.Duration `yaml:"backoff_reset" default:"30s"`
	// BackoffPermanent is the wait after a refusal that only a person can cure. Default 5m.
	BackoffPermanent time.Duration `yaml:"backoff_permanent" default:"5m"`
}
