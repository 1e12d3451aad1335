package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters"
	"iop/apps/node/internal/store"
	"iop/packages/go/doctor"
	"iop/packages/go/execution"
	"iop/packages/go/program"
	pb "iop/proto/iop"
)

// Provider is a provider to look at.
type Provider struct {
	Name    string // of the adapter
	Kind    string // of the driver
	BaseURL string
	Targets []string // what it should have; none = whatever it has
	Routed  []string // what routes ask it for beside those
	Options map[string]string
	Allow   []string
}

// Kinds returns the kinds of drivers.
func Kinds() []string { return adapters.Kinds() }

// providers asks all providers at once what they are and have, as the node does: none is asked to run anything.
func (x *examination) providers(ctx context.Context) []doctor.Finding {
	list := x.toAsk()
	if len(list) == 0 {
		if s := x.runs.Load(); s != nil {
			return heard(s)
		}
		return []doctor.Finding{doctor.Skip("provider", "correct what is wrong with the Edge first, or look at one with --provider URL --kind KIND",
			"which providers there are isn't known: the Edge hasn't told")}
	}
	found := make([]doctor.Finding, len(list))
	var all sync.WaitGroup
	for i := range list {
		all.Go(func() { found[i] = list[i].look(ctx) })
	}
	all.Wait()
	for i := range found {
		// What answers now may not have when the node asked.
		if why := x.unavailable(list[i].Name); why != "" && found[i].Level == doctor.OK {
			found[i] = doctor.Warn(found[i].Check, "wait for timers.probe_interval: the node asks again by itself", "%s; but the running node doesn't use it yet: %s", found[i].Text, why)
		}
	}
	return found
}

// heard says what a running node says of its adapters, where no Edge told what they are.
func heard(s *nodeStatus) []doctor.Finding {
	var found []doctor.Finding
	for i := range s.Adapters {
		a := &s.Adapters[i]
		if a.Available {
			found = append(found, doctor.Well("provider "+a.Name, "the running node can use it"))
			continue
		}
		found = append(found, doctor.Failed("provider "+a.Name, "start the provider, or correct base_url of the adapter in the Edge's file", "the running node can't use it: %s", a.Reason))
	}
	return found
}

// toAsk lists the providers that the Edges named, each once.
func (x *examination) toAsk() []Provider {
	var list []Provider
	if x.opts.Provider != nil {
		list = append(list, *x.opts.Provider)
	}
	edges := x.told.Load()
	if edges == nil {
		return list
	}
	for _, t := range *edges {
		for _, a := range t.config.GetAdapters() {
			p := fromWire(a, t.config.GetRoutes())
			if !slices.ContainsFunc(list, func(o Provider) bool { return o.Name == p.Name && o.Kind == p.Kind && o.BaseURL == p.BaseURL }) {
				list = append(list, p)
			}
		}
	}
	return list
}

func fromWire(a *pb.AdapterConfig, routes []*pb.RouteRef) Provider {
	p := Provider{Name: a.GetName(), Kind: a.GetKind(), BaseURL: a.GetBaseUrl(), Targets: a.GetTargets(), Allow: a.GetAllowPaths(), Options: map[string]string{}}
	for _, o := range a.GetOptions() {
		p.Options[o.GetKey()] = o.GetValue()
	}
	for _, r := range routes {
		if r.GetAdapter() == p.Name && r.GetTarget() != "" && !slices.Contains(p.Targets, r.GetTarget()) {
			p.Routed = append(p.Routed, r.GetTarget())
		}
	}
	return p
}

// look asks one provider.
func (p *Provider) look(ctx context.Context) doctor.Finding {
	check := "provider " + p.Name
	where := p.BaseURL
	if where == "" {
		where = "kind " + p.Kind
	}
	driver, err := adapters.Build(adapters.Config{Name: p.Name, Kind: p.Kind, BaseURL: p.BaseURL, MaxConcurrency: 1, Options: p.Options,
		AllowPaths: p.Allow, Targets: p.Targets, Log: zerolog.Nop()})
	if err != nil {
		return doctor.Failed(check, "correct the adapter in the Edge's file", "%v", err)
	}
	defer driver.Close()
	caps := driver.Probe(ctx)
	if !caps.Available {
		return doctor.Failed(check, p.remedy(), "%s: %s", where, caps.Reason)
	}
	var missing []string
	for _, target := range slices.Concat(p.Targets, p.Routed) {
		if len(caps.Models) > 0 && !slices.ContainsFunc(caps.Models, func(m execution.Model) bool { return execution.SameModel(m.Name, target) }) {
			missing = append(missing, target)
		}
	}
	has := fmt.Sprintf("%s, version %s, has %s", where, caps.Version, models(caps.Models))
	switch {
	case len(missing) > 0 && strings.HasPrefix(caps.Version, "llama.cpp"):
		return doctor.Warn(check, "correct targets in the Edge's file, or start the provider with --alias", "%s: it has no %s; a llama.cpp answers to any name with what it has loaded, but lists only its own",
			has, strings.Join(missing, ", "))
	case len(missing) > 0:
		return doctor.Failed(check, p.pull(missing), "%s: it lacks %s, which the Edge's file has as targets, so that requests for it fail", has, strings.Join(missing, ", "))
	case len(caps.Models) == 0 && len(p.Targets) == 0 && p.Kind != "loopback":
		return doctor.Warn(check, "load a model there (ollama pull MODEL), or name what it has as targets of the adapter", "%s: it offers nothing", has)
	}
	return doctor.Well(check, "%s", has)
}

// remedy says what to do about a provider that can't be used.
func (p *Provider) remedy() string {
	if p.Kind == "auto" || p.Kind == "ollama" {
		return "start Ollama there (ollama serve, systemctl start ollama), or correct base_url of the adapter in the Edge's file; it is as this machine sees it"
	}
	return "start the provider, or correct base_url of the adapter in the Edge's file; it is as this machine sees it"
}

// pull says how missing models get there.
func (p *Provider) pull(missing []string) string {
	if p.Kind == "auto" || p.Kind == "ollama" {
		return "ollama pull " + missing[0] + ", or correct targets in the Edge's file"
	}
	return "have the provider serve it, or correct targets in the Edge's file"
}

// models lists some of the models.
func models(list []execution.Model) string {
	const shown = 5
	if len(list) == 0 {
		return "no models that it tells of"
	}
	var names []string
	for i, m := range list {
		if i == shown {
			names = append(names, "…")
			break
		}
		names = append(names, m.Name)
	}
	return program.Count(len(list), "model") + " (" + strings.Join(names, ", ") + ")"
}

// journal looks through the node's journal as the node does when it starts.
func (x *examination) journal(ctx context.Context) []doctor.Finding {
	const check = "journal"
	path, err := store.Path(x.cfg.DataDir, "")
	if err != nil {
		return []doctor.Finding{doctor.Failed(check, "correct data_dir", "%v", err)}
	}
	switch _, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return []doctor.Finding{doctor.Well(check, "there is none yet; the node makes it when it starts")}
	case err != nil:
		return []doctor.Finding{doctor.Skip(check, "", "it can't be reached; see the check of data_dir")}
	}
	state, err := store.Inspect(ctx, path)
	switch {
	case ctx.Err() != nil:
		return []doctor.Finding{doctor.Skip(check, "", "%s is too large or its disk too slow to be looked through in %v", path, journalLimit)}
	case state == store.FileDamaged:
		return []doctor.Finding{doctor.Failed(check, "copy the file if you need its history, then restart the node: it sets the file aside and begins a fresh one", "%v", err)}
	case err != nil:
		return []doctor.Finding{doctor.Failed(check, "let the program's user read and write it, or move the file away: the node doesn't start with it", "%v", err)}
	}
	return []doctor.Finding{doctor.Well(check, "%s is sound", path)}
}
