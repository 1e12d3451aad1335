// Package diagnose is what `iop-edge doctor` looks at: everything between a caller and the nodes, in the order in which
// a request needs it. It reads what a running Edge says of itself and changes nothing; only when it is told to, it sends
// one small request through the whole path, as a caller does.
package diagnose

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/doctor"
	"iop/packages/go/program"
)

// Options is what there is to look at.
type Options struct {
	// File is the Edge's configuration.
	File string
	// Version is what this program calls itself.
	Version string
	// AdminKey opens the admin listener where it asks for a key; "" = none is at hand.
	AdminKey string
	// Request is the model of the test request; nil sends none, "" asks for that of the first route, or what it leads to.
	Request *string
	// APIKey is the key that it is sent with; "" = none.
	APIKey string
	// Deadline bounds the test request.
	Deadline time.Duration
	// Events is how long past events are read: their stream goes on with what happens, and has no end. Default 500 ms.
	Events time.Duration
}

// Limits of the checks.
const (
	adminLimit  = 5 * time.Second
	routesLimit = 10 * time.Second
	slotsLimit  = 20 * time.Second // a source may be a program
)

// examination is what the checks learn from each other; a check that was left behind may still write.
type examination struct {
	opts  Options
	cfg   *config.Edge
	state atomic.Pointer[running] // nil = no running Edge was found
	// hangs says that something has the admin listener's address and doesn't answer.
	hangs atomic.Bool
	// offered is a model that a ready node has, nil = none is known.
	offered atomic.Pointer[string]
}

// Checks returns what is to be looked at. The configuration is read at once: without it there is nothing else to see.
func Checks(opts Options) []doctor.Check {
	x := &examination{opts: opts}
	found := x.readConfig()
	checks := []doctor.Check{{Name: "config", Run: func(context.Context) []doctor.Finding { return found }}}
	if x.cfg == nil {
		return checks
	}
	checks = append(checks,
		doctor.Check{Name: "access", Run: x.access},
		doctor.Check{Name: "admin", Limit: adminLimit, Run: x.admin},
		doctor.Check{Name: "listen", Run: x.listeners},
		doctor.Check{Name: "tls", Run: x.certificates},
		doctor.Check{Name: "state_dir", Run: x.stateDir},
		doctor.Check{Name: "tokens", Run: x.tokens},
		doctor.Check{Name: "nodes", Limit: adminLimit, Run: x.nodes},
		doctor.Check{Name: "routes", Limit: routesLimit, Run: x.routes},
		doctor.Check{Name: "slots", Limit: slotsLimit, Run: x.slots},
		doctor.Check{Name: "files", Run: x.files},
		doctor.Check{Name: "memory", Run: x.memory})
	if opts.Request != nil {
		checks = append(checks, doctor.Check{Name: "request", Limit: opts.Deadline + 5*time.Second, Run: x.request})
	}
	return checks
}

// readConfig reads the file without the files of the identity: those have a check of their own.
func (x *examination) readConfig() []doctor.Finding {
	const check = "config"
	cfg, err := config.ReloadEdge(x.opts.File)
	problems := new(config.Errors)
	switch {
	case errors.As(err, &problems):
		var found []doctor.Finding
		for _, p := range problems.List {
			found = append(found, doctor.Failed(check, "correct it; every key is explained in configs/edge.yaml", "%s", p))
		}
		return append(found, doctor.Skip("everything else", "", "needs a configuration that can be read"))
	case err != nil:
		return []doctor.Finding{doctor.Failed(check, "look at the file", "%v", err)}
	}
	x.cfg = cfg
	return []doctor.Finding{doctor.Well(check, "%s can be read: mode %s, %s, %s, %s", x.opts.File, cfg.Mode, program.Count(len(cfg.Nodes), "node"),
		program.Count(len(cfg.Routes), "route"), program.Count(len(cfg.Principals), "principal"))}
}

// access looks at who may come in where, and what crosses the network in the clear. What lets strangers in the
// configuration refuses already.
func (x *examination) access(context.Context) []doctor.Finding {
	const check = "access"
	var found []doctor.Finding
	if x.cfg.InsecurePlaintext {
		found = append(found, doctor.Warn(check, "use mode: managed (iop-edge ca makes the certificates), or a tunnel that encrypts",
			"insecure_plaintext: tokens and prompts cross the network between nodes and %s in the clear", x.cfg.Listen.Nodes))
	}
	if x.cfg.Listen.HTTPTLS == nil && !config.Loopback(x.cfg.Listen.HTTP) {
		found = append(found, doctor.Warn(check, "set listen.http_tls, or put a proxy with TLS in front and listen on loopback",
			"callers' keys and prompts come to %s over plain HTTP", x.cfg.Listen.HTTP))
	}
	if len(x.cfg.Principals) == 0 {
		found = append(found, doctor.Well(check, "callers need no key, and come from this machine only"))
	} else {
		found = append(found, doctor.Well(check, "%s may ask, each with a key", program.Count(len(x.cfg.Principals), "principal")))
	}
	return found
}

// listeners looks at the three addresses: a running Edge must hold them, and without one they must be free.
func (x *examination) listeners(ctx context.Context) []doctor.Finding {
	var found []doctor.Finding
	for _, l := range []struct{ key, addr string }{{"nodes", x.cfg.Listen.Nodes}, {"http", x.cfg.Listen.HTTP}} {
		found = append(found, x.listener(ctx, "listen."+l.key, l.addr))
	}
	return found
}

// listener looks at one address that isn't the admin listener's.
func (x *examination) listener(ctx context.Context, key, addr string) doctor.Finding {
	_, port, _ := net.SplitHostPort(addr)
	if port == "0" {
		return doctor.Skip(key, "name a port, so that others find it again", "%s takes a free port at each start", addr)
	}
	if x.state.Load() != nil {
		if answers(ctx, dialable(addr)) {
			return doctor.Well(key, "%s is held by the running Edge", addr)
		}
		return doctor.Failed(key, "restart the Edge: it takes its addresses when it starts; or look at firewalls on this machine", "an Edge runs, and nothing answers at %s", addr)
	}
	taken, f := free(key, addr)
	switch {
	case !taken:
		return f
	case x.hangs.Load():
		return doctor.Skip(key, "", "%s is held, and it seems by the Edge that doesn't answer", addr)
	case x.cfg.Listen.Admin == "":
		return doctor.Skip(key, "set listen.admin to have doctor look at the running Edge, too", "%s is held; whether by an Edge can't be told without listen.admin", addr)
	}
	return f
}

// free finds out by taking an address for a moment whether the Edge could. It doesn't connect: a service manager that
// holds the address for an Edge which doesn't run would start it.
func free(key, addr string) (taken bool, f doctor.Finding) {
	l, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		l.Close()
		return false, doctor.Well(key, "%s is free, no Edge runs", addr)
	case errors.Is(err, syscall.EADDRINUSE):
		return true, doctor.Failed(key, "stop what holds it (ss -ltnp shows it), or choose another address for "+key+"; systemd may hold it for the Edge on purpose (a .socket unit)",
			"%s is taken, and no Edge answers at listen.admin: started by hand, this Edge couldn't have it", addr)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return false, doctor.Failed(key, "name an address of this machine; a port below 1024 needs a right (systemd: AmbientCapabilities=CAP_NET_BIND_SERVICE)",
		"%s can't be listened on: %v", addr, err)
}

// dialable is the address to dial for one to listen on: all addresses are reached by loopback.
func dialable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}

// answers reports whether anything listens.
func answers(ctx context.Context, addr string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// certificates looks at the files of both TLS listeners, and how long they last.
func (x *examination) certificates(context.Context) []doctor.Finding {
	var found []doctor.Finding
	if x.cfg.Managed() {
		_, found = doctor.Identity(x.cfg.Identity(), "", time.Now())
	}
	if files := x.cfg.Listen.HTTPTLS; files != nil {
		found = append(found, doctor.Certificate("listen.http_tls", files.Cert, time.Now()))
	}
	return found
}

// stateDir looks at the directory, and at the file that keeps generations from going backwards.
func (x *examination) stateDir(context.Context) []doctor.Finding {
	found := doctor.Directory("state_dir", "state_dir", x.cfg.StateDir)
	return append(found, generations(x.cfg.StateDir)...)
}

// tokens looks at when tokens end.
func (x *examination) tokens(context.Context) []doctor.Finding {
	const check, soon = "tokens", 7 * 24 * time.Hour
	var found []doctor.Finding
	now, all := time.Now(), 0
	for i := range x.cfg.Nodes {
		n := &x.cfg.Nodes[i]
		good := 0
		var last time.Time // when the last of those ends that have an end
		for _, t := range n.TokenHashes {
			all++
			switch {
			case t.NotAfter.IsZero():
				good, last = good+2, time.Time{}
			case t.NotAfter.After(now):
				good++
				if t.NotAfter.After(last) {
					last = t.NotAfter
				}
			}
		}
		remedy := fmt.Sprintf("iop-edge token new %s; give the node the token and put the hash beside the old one", n.ID)
		switch {
		case !n.Enabled:
		case good == 0 && len(n.TokenHashes) > 0:
			found = append(found, doctor.Failed(check, remedy, "every token of %s has expired: it isn't let in any more", n.ID))
		case good == 1 && last.Sub(now) < soon:
			found = append(found, doctor.Warn(check, remedy, "the last token of %s ends at %s", n.ID, last.UTC().Format(time.RFC3339)))
		}
	}
	if len(found) == 0 {
		found = append(found, doctor.Well(check, "%s of nodes, none of an enabled node ends within a week", program.Count(all, "token")))
	}
	return found
}

// FilesNeeded counts the connections that a configuration permits, and some files.
func FilesNeeded(cfg *config.Edge) uint64 {
	const others = 64
	b := cfg.MemoryBound()
	bodies := b.Places + b.Waiting // in files
	return uint64(cfg.Limits.Connections + bodies + len(cfg.Nodes) + cfg.Limits.Unregistered + others)
}

const filesWhy = "limits.connections and what runs and waits"

// files compares the limit of open files with what the limits permit; that of the running Edge, if there is one.
func (x *examination) files(ctx context.Context) []doctor.Finding {
	need := FilesNeeded(x.cfg)
	if x.state.Load() != nil {
		if text, f := x.ask(ctx, "/metrics"); f == nil {
			if limit, ok := gauge(string(text), "process_max_fds"); ok {
				return []doctor.Finding{doctor.Files("the running Edge", uint64(limit), need, filesWhy)}
			}
		}
	}
	return []doctor.Finding{doctor.OwnFiles(need, filesWhy)}
}

func (x *examination) memory(context.Context) []doctor.Finding {
	return []doctor.Finding{doctor.Memory(program.MemoryLimit(), x.cfg.MemoryBound().Total(), "the limits (iop-edge check lists them)")}
}

// httpURL is where callers reach this Edge from this machine.
func (x *examination) httpURL() string {
	scheme := "http://"
	if x.cfg.Listen.HTTPTLS != nil {
		scheme = "https://"
	}
	return scheme + dialable(x.cfg.Listen.HTTP)
}

// client asks without keeping connections, and follows no redirect, which would take a key along.
func client(transport *http.Transport) *http.Client {
	transport.DisableKeepAlives = true
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// list writes some names of many.
func list(names []string) string {
	const shown = 5
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}
