// Package transport keeps the node's link to one Edge: it dials, registers, builds what the projection asks for, says
// Ready, hands work to the executor, and dials again when the link is over.
//
// It owns the states of the link and when to dial next. It must not know what an execution is or how an adapter
// works: streams and cancels go to the executor as they come. The bytes are packages/go/transport's.
package transport

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/node"
	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/identity"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Config is what a link needs.
type Config struct {
	// Edge is the address to dial, host:port.
	Edge string
	// Token is what the node registers with.
	Token config.Secret
	// Identity is who the node is towards the Edge, and whose Edge it believes; nil is plaintext.
	Identity *identity.Source
	// EdgeID is whom the Edge's certificate must name, with Identity.
	EdgeID identity.ID
	// InstanceID names this process; it is drawn once.
	InstanceID [16]byte
	// Version is what the node calls itself.
	Version string
	// Executor takes the work.
	Executor *node.Executor
	// Timers bound the waits.
	Timers Timers
	// Mux tunes the multiplexed connection; the Edge's limits stand over its heartbeat and dead limit.
	Mux transport.Config
	// OnReady is called when the Edge confirmed a connection as dispatchable; nil is nobody. It must not block.
	OnReady func(edge string)
	// Log takes the link's story.
	Log zerolog.Logger

	// Dial makes the connection; nil is plain TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Slept returns how long the machine was asleep so far; nil asks the kernel.
	Slept func() time.Duration
	// Clocks reads this machine's clocks; nil asks the kernel.
	Clocks func() transport.ClockReading
	// Random returns numbers in [0, 1); nil is the process's generator.
	Random func() float64
}

// Timers bound the waits of a link. Zero is the default in brackets.
type Timers struct {
	Handshake        time.Duration // the dial and the registration, each (10 s)
	BackoffStart     time.Duration // the bound of the first random wait (1 s)
	BackoffMax       time.Duration // its highest bound (30 s)
	BackoffReset     time.Duration // life of a link that makes the waits small again (30 s)
	BackoffPermanent time.Duration // after a refusal that only a person can cure (5 min)
	Drain            time.Duration // executions may go on after Drain (30 s)
	Stop             time.Duration // executions may take to end after their cancel (11 s)
	Leave            time.Duration // a connection may take to end after the Goodbye (2 s)
	SleepTick        time.Duration // between two looks whether the machine was asleep (2 s)
	Rekey            time.Duration // life of a recipient key on a connection that lasts longer (12 h)
	Ask              time.Duration // between two questions for the Edge's time, while it isn't known (3 s)
}

func (t Timers) withDefaults() Timers {
	return Timers{
		Handshake:        cmp.Or(t.Handshake, 10*time.Second),
		BackoffStart:     cmp.Or(t.BackoffStart, time.Second),
		BackoffMax:       cmp.Or(t.BackoffMax, 30*time.Second),
		BackoffReset:     cmp.Or(t.BackoffReset, 30*time.Second),
		BackoffPermanent: cmp.Or(t.BackoffPermanent, 5*time.Minute),
		Drain:            cmp.Or(t.Drain, 30*time.Second),
		Stop:             cmp.Or(t.Stop, 11*time.Second),
		Leave:            cmp.Or(t.Leave, 2*time.Second),
		SleepTick:        cmp.Or(t.SleepTick, 2*time.Second),
		Rekey:            cmp.Or(t.Rekey, 12*time.Hour),
		// Longer than an answer that counts may take.
		Ask: cmp.Or(t.Ask, credentiallease.MaxRoundTrip+time.Second),
	}
}

// State is where a link stands.
type State string

// The states, by their stable names.
const (
	StateBackoff   State = "backoff"
	StateDialing   State = "dialing"
	StateHandshake State = "handshake"
	StateBuilding  State = "building"
	StateServing   State = "serving"
	StateDraining  State = "draining"
	StateStopped   State = "stopped"
)

// Status is what a link shows of itself.
type Status struct {
	Edge          string
	State         State
	Since         time.Time // of the state
	Generation    uint64    // of the current or last connection
	NodeID        string    // what the Edge calls this node
	EdgeID        string
	Projection    uint64
	Dials         int
	Registrations int
	LastError     string    // why the last connection ended, or wasn't made
	NextDial      time.Time // in StateBackoff
	Mux           transport.Status
}

// Link is the link to one Edge.
type Link struct {
	// set once
	cfg   Config
	log   zerolog.Logger
	drain chan struct{} // closed by Drain
	once  sync.Once     // of drain

	// owned by Run
	backoff          backoff
	lastGeneration   uint64
	lastEdgeInstance []byte
	shown            *identity.Material // at the last handshake, at least
	departing        sync.WaitGroup     // connections that were handed over
	left             context.Context    // of those; ends with Run

	mu     sync.Mutex
	status Status
	mux    *transport.Link // of the connection that is up
}

// New returns a link. It starts nothing.
func New(cfg Config) *Link {
	cfg.Timers = cfg.Timers.withDefaults()
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	if cfg.Slept == nil {
		cfg.Slept = slept
	}
	if cfg.Clocks == nil {
		cfg.Clocks = newClocks()
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.OnReady == nil {
		cfg.OnReady = func(string) {}
	}
	return &Link{
		cfg: cfg, log: cfg.Log.With().Str("edge", cfg.Edge).Logger(), drain: make(chan struct{}),
		backoff: backoff{
			start: cfg.Timers.BackoffStart, max: cfg.Timers.BackoffMax, permanent: cfg.Timers.BackoffPermanent, random: cfg.Random,
		},
		status: Status{Edge: cfg.Edge, State: StateBackoff, Since: time.Now()},
	}
}

// Drain lets Run end: at once when nothing is connected, else when what runs has ended or the drain limit is over.
func (l *Link) Drain() { l.once.Do(func() { close(l.drain) }) }

// Run keeps the link until Drain, or until ctx ends, which cuts everything short. It returns when every goroutine that
// it started has ended.
func (l *Link) Run(ctx context.Context) {
	defer l.enter(StateStopped)
	left, cut := context.WithCancel(context.Background())
	l.left = left
	defer l.departing.Wait()
	defer cut()
	undrained, stop := context.WithCancel(ctx) // ends when nothing new is to be begun
	defer stop()
	go func() { // ends with undrained
		select {
		case <-l.drain:
			stop()
		case <-undrained.Done():
		}
	}()
	for {
		wait := l.attempt(ctx, undrained)
		if undrained.Err() != nil || !l.sleep(undrained, wait) {
			return
		}
	}
}

// attempt is one connection from its dial to its end, and returns how long to wait for the next one.
func (l *Link) attempt(ctx, undrained context.Context) time.Duration {
	reg, err := l.register(undrained)
	var refused *refusedError
	switch {
	case undrained.Err() != nil:
		if reg != nil {
			reg.conn.Close()
		}
		return 0
	case errors.As(err, &refused):
		wait := l.backoff.refused(refused.class, refused.retryAfter)
		l.failed(err, wait, zerolog.ErrorLevel)
		return wait
	case err != nil:
		wait := l.backoff.next()
		l.failed(err, wait, zerolog.WarnLevel)
		return wait
	}
	watch := l.watchSleep()
	defer watch.stop()
	l.registered(reg.resp)
	end := l.serve(ctx, reg, watch)
	if undrained.Err() != nil {
		l.log.Info().Msg("link closed")
		return 0
	}
	wait := l.redial(end)
	l.failed(end.err, wait, zerolog.WarnLevel)
	return wait
}

// registration is a connection that the Edge has accepted.
type registration struct {
	conn  net.Conn // what the protocol is spoken on
	resp  *pb.RegisterResponse
	peer  *identity.Peer // who the Edge proved to be; nil without an identity
	offer *offer         // the recipient key that it was told
}

// register dials and does the handshake.
func (l *Link) register(ctx context.Context) (*registration, error) {
	l.enter(StateDialing)
	conn, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	l.enter(StateHandshake)
	if l.cfg.Identity != nil {
		l.shown = l.cfg.Identity.Current()
	}
	return l.introduce(ctx, conn, false)
}

// dial makes the bare connection.
func (l *Link) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timers.Handshake)
	defer cancel()
	return l.cfg.Dial(ctx, l.cfg.Edge)
}

// introduce proves who this node is, and registers. handover says that it is a connection beside one that lives.
func (l *Link) introduce(ctx context.Context, bare net.Conn, handover bool) (*registration, error) {
	conn, peer, err := l.secure(ctx, bare)
	if err != nil {
		bare.Close()
		return nil, err
	}
	key, err := newOffer(peer)
	var resp *pb.RegisterResponse
	if err == nil {
		resp, err = l.handshake(ctx, conn, key, handover)
	}
	if err != nil {
		key.drop()
		bare.Close()
		return nil, err
	}
	return &registration{conn: conn, resp: resp, peer: peer, offer: key}, nil
}

// redial says how long to wait after a connection that was up.
func (l *Link) redial(end ending) time.Duration {
	if end.atOnce {
		return 0
	}
	g := end.goodbye
	after := time.Duration(min(g.GetRetryAfterMs(), maxRetryAfter.Milliseconds())) * time.Millisecond
	switch g.GetCode() {
	case pb.GoodbyeCode_GOODBYE_CODE_NODE_DISABLED:
		return l.backoff.refused(configuration, after)
	case pb.GoodbyeCode_GOODBYE_CODE_UNSPECIFIED:
		return l.backoff.next()
	}
	return l.backoff.refused(retryable, after)
}

// sleep waits before the next dial. It reports false when nothing is to be dialed any more. A machine that wakes up
// dials at once.
func (l *Link) sleep(ctx context.Context, wait time.Duration) bool {
	watch := l.watchSleep()
	defer watch.stop()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	l.mu.Lock()
	l.enterLocked(StateBackoff)
	l.status.NextDial = time.Now().Add(wait)
	l.mu.Unlock()
	changed := l.identityChanged()
	if l.unshown() {
		return true
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-changed:
			l.log.Info().Msg("the node's identity was renewed; dialing at once")
			return true
		case <-watch.tick.C:
			if watch.woke() {
				l.log.Info().Msg("the machine was asleep; dialing at once")
				return true
			}
		}
	}
}

func (l *Link) watchSleep() *sleepWatch { return newSleepWatch(l.cfg.Slept, l.cfg.Timers.SleepTick) }

// registered notes an accepted registration.
func (l *Link) registered(resp *pb.RegisterResponse) {
	l.backoff.registered()
	l.lastGeneration, l.lastEdgeInstance = resp.GetConnectionGeneration(), resp.GetEdgeInstance()
	l.mu.Lock()
	l.enterLocked(StateBuilding)
	l.status.Registrations++
	l.status.Generation = resp.GetConnectionGeneration()
	l.status.NodeID, l.status.EdgeID = printable(resp.GetNodeId()), printable(resp.GetEdgeId())
	l.status.LastError = ""
	l.mu.Unlock()
	l.log.Info().Str("node_id", printable(resp.GetNodeId())).Uint64("connection_generation", resp.GetConnectionGeneration()).
		Uint64("projection", resp.GetConfig().GetProjection()).Msg("registered")
}

// failed notes why there is no connection.
func (l *Link) failed(err error, wait time.Duration, level zerolog.Level) {
	text := printable(err.Error())
	l.mu.Lock()
	l.status.LastError = text
	l.mu.Unlock()
	event := l.log.WithLevel(level).Str("reason", text).Dur("retry_in_ms", wait)
	var refused *refusedError
	if errors.As(err, &refused) {
		event = event.Str("code", refused.reason)
	}
	event.Msg("no link to the edge")
}

func (l *Link) enter(s State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enterLocked(s)
}

func (l *Link) enterLocked(s State) {
	if s == StateDialing {
		l.status.Dials++
	}
	l.status.State, l.status.Since, l.status.NextDial = s, time.Now(), time.Time{}
}

// Status returns a snapshot for people.
func (l *Link) Status() Status {
	l.mu.Lock()
	status, mux := l.status, l.mux
	l.mu.Unlock()
	if mux != nil {
		status.Mux = mux.Status()
	}
	return status
}
