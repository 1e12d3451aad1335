package program

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/identity"
)

const (
	// rereadInterval is how often the files are read although nobody saw them change: a certificate may only become
	// valid in a moment, and one that was replaced while this program started would go by unseen.
	rereadInterval = 5 * time.Second
	// expirySoon is the least rest of a certificate's life at which its end is warned of, if that is less than a fifth
	// of it.
	expirySoon = 7 * 24 * time.Hour
)

// FollowIdentity reads an identity's files again when they change or somebody asks, until ctx ends. What can't be used
// changes nothing; it is logged, and told to failed, once for each thing that is wrong. changed is called after
// something else came into force.
func FollowIdentity(ctx context.Context, s *identity.Source, asked <-chan struct{}, log zerolog.Logger, failed func(error), changed func()) {
	f := &identityFollower{source: s, log: log, failed: failed, changed: changed}
	news := make(chan struct{}, 1)
	watched := make(chan struct{})
	go func() { // ends with ctx
		defer close(watched)
		Watch(ctx, s.Files, func() {
			select {
			case news <- struct{}{}:
			default:
			}
		})
	}()
	defer func() { <-watched }()
	f.expiry()
	tick := time.NewTicker(rereadInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-news:
			f.reload()
		case <-asked:
			f.wrong = ""
			f.reload()
		case <-tick.C:
			f.reload()
			f.expiry()
		}
	}
}

type identityFollower struct {
	source  *identity.Source
	log     zerolog.Logger
	failed  func(error)
	changed func()
	wrong   string // with the files now, "" = nothing
	warned  *identity.Material
}

func (f *identityFollower) reload() {
	changed, err := f.source.Reload()
	switch {
	case err != nil:
		if err.Error() != f.wrong {
			f.log.Warn().Err(err).Str("code", "identity_reload_failed").Msg("identity not reloaded: what is in force stays")
			f.failed(err)
		}
		f.wrong = err.Error()
		return
	case changed:
		m := f.source.Current()
		f.log.Info().Str("spiffe_id", string(m.ID())).Str("serial", identity.Serial(m.Leaf())).Time("not_after", m.NotAfter().UTC()).
			Int("cas", len(m.CAs())).Msg("identity reloaded")
		f.changed()
	}
	f.wrong = ""
}

// expiry warns once of each certificate that nobody has renewed in time.
func (f *identityFollower) expiry() {
	m := f.source.Current()
	if f.warned == m || !ExpiresSoon(m.Leaf().NotBefore, m.NotAfter(), time.Now()) {
		return
	}
	f.warned = m
	f.log.Warn().Str("spiffe_id", string(m.ID())).Time("not_after", m.NotAfter().UTC()).
		Msg("the certificate is about to expire, and links end with it; renew it")
}

// ExpiresSoon reports whether so little is left of a certificate's life that nobody seems to renew it in time.
func ExpiresSoon(from, to, now time.Time) bool {
	return to.Sub(now) <= min(expirySoon, to.Sub(from)/5)
}
