package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// pairNames are a caller and a kind by their names.
type pairNames struct{ speech, kind string }

func (n pairNames) find() (speech, kind) {
	s, k := speeches(), kinds()
	return s[slices.IndexFunc(s, func(s speech) bool { return s.name == n.speech })], k[slices.IndexFunc(k, func(k kind) bool { return k.name == n.kind })]
}

// ways are the ways that a request can go: as it is, and as a run to each kind.
func ways() []pairNames {
	return []pairNames{{"Ollama", "ollama"}, {"runs", "ollama"}, {"Ollama", "openai"}, {"OpenAI", "anthropic"}}
}

// linkedPair is a pair whose node reaches its edge through a relay.
type linkedPair struct {
	*pair
	relay *harness.Relay
}

func newLinkedPair(t *testing.T, n pairNames, scaled scale, o harness.Options) *linkedPair {
	t.Helper()
	s, k := n.find()
	provider := fakeprovider.New(t, behindLists(ok))
	o.Adapters = fmt.Sprintf("[{name: gpu, %s, base_url: %q, max_concurrency: 4}]", k.adapter, provider.URL())
	l := newLinked(t, scaled, nil, setup{Options: o})
	l.provider = provider
	return &linkedPair{&pair{rig: l.rig, speech: s, kind: k}, l.relay}
}

// OL-01: a model that is being loaded is waited for, however the request goes: far beyond the dead limit, on the same
// connection, and the node stays.
func TestPairsWaitForColdModels(t *testing.T) {
	t.Parallel()
	const scaled = scale(5)
	silence := scaled.of(2 * time.Minute)
	s := sayings()["reasoning"]
	var pairs []*linkedPair
	for _, n := range ways() {
		p := newLinkedPair(t, n, scaled, harness.Options{})
		p.says(func(x *fakeprovider.Exchange) {
			if !x.Pause(silence) {
				t.Errorf("%s to %s: the provider's connection was closed while it was loading", n.speech, n.kind)
				return
			}
			fakeprovider.Speak(s)(x)
		})
		pairs = append(pairs, p)
	}
	all(len(pairs), func(i int) {
		p, q := pairs[i], chatOf(i%2 == 0)
		a, err := harness.Ask(p.HTTP(), p.request(q), silence+limit)
		if err != nil {
			t.Error(err)
			return
		}
		h, err := p.read(a, q.Stream, !p.tunnel())
		if err != nil {
			t.Error(err)
		}
		same(t, p.name+" to "+p.kind.name, h, p.understood(s, q))
	})
	for _, p := range pairs {
		if n := len(p.seen()); n != 1 {
			t.Errorf("%s to %s: the provider saw %d requests", p.name, p.kind.name, n)
		}
		if fenced := events(p.Edge, "fenced", "box"); len(fenced) > 0 {
			t.Errorf("%s to %s: %v", p.name, p.kind.name, fenced)
		}
	}
}

// OL-03: what a caller's browser says of itself, and how it knows the edge, stays there, however the request goes.
func TestPairsKeepHostAndOrigin(t *testing.T) {
	t.Parallel()
	s := sayings()["text"]
	eachPair(t, harness.Options{Principals: principals("client-1")}, 4, func(t *testing.T, p *pair) {
		p.says(func(x *fakeprovider.Exchange) {
			for _, name := range []string{"Origin", "Referer", "Cookie", "Authorization", "X-Api-Key", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host"} {
				if value, there := x.Header[name]; there {
					t.Errorf("the provider got %s: %q", name, value)
				}
			}
			if x.Host != p.provider.Addr() {
				x.Reply(403, "text/plain", "")
				return
			}
			fakeprovider.Speak(s)(x)
		})
		for _, key := range []string{"Authorization: Bearer client-1", "X-Api-Key: client-1"} {
			q := chatOf(true)
			a := p.ask(p.request(q, "Host: edge.example", "Origin: https://app.example", "Referer: https://app.example/x", "Cookie: a=b",
				"Forwarded: for=1.2.3.4", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: edge.example", key))
			h, err := p.read(a, true, !p.tunnel())
			if err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			same(t, key, h, p.understood(s, q))
		}
	})
}

// OL-07: whatever they speak, callers are served in the order in which they came.
func TestPairsAreServedInOrder(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			const n = 15
			p := newPair(t, speeches()[0], k, harness.Options{}, 1)
			arrived, release := make(chan struct{}, n), make(chan struct{})
			s := sayings()["text"]
			p.says(func(x *fakeprovider.Exchange) {
				x.Body()
				arrived <- struct{}{}
				<-release
				fakeprovider.Speak(s)(x)
			})
			callers := make([]*harness.Caller, n)
			for i := range callers {
				each := speeches()[i%len(speeches())]
				q := chatOf(i%2 == 0)
				q.Messages = []fakeprovider.Message{fakeprovider.Says("user", fmt.Sprint("number ", i))}
				callers[i] = p.dial()
				callers[i].Send(each.request(q))
				if i == 0 {
					await(t, arrived, "the first request at the provider")
				}
				p.AwaitQueued(i, limit)
			}
			close(release)
			for i, c := range callers {
				if response, _, err := c.Response(limit); err != nil || response.StatusCode != 200 {
					t.Errorf("caller %d: %v, %v", i, response, err)
				}
			}
			for i, x := range p.seen() {
				q, err := x.DialectOf().Read(x.Received())
				if err != nil || textOf(&q.Messages[0]) != fmt.Sprint("number ", i) {
					t.Errorf("%v, %v was served as number %d", err, q, i)
				}
			}
		})
	}
}

// OL-09, OL-10: what runs on a link that is cut, or falls silent, doesn't keep the provider, whatever it speaks; its caller
// is told in its own dialect. When the node is back it holds nothing, and serves.
func TestPairsLoseTheirLinks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		lose  func(*harness.Relay)
		after time.Duration
		scale scale
	}{{"cut", (*harness.Relay).Reset, 0, 1}, {"silent", (*harness.Relay).Silence, dead, 8}} {
		for _, n := range ways() {
			t.Run(c.name+", "+n.speech+" to "+n.kind, func(t *testing.T) {
				t.Parallel()
				p := newLinkedPair(t, n, c.scale, harness.Options{})
				gone := make(chan time.Time, 1)
				p.says(ticking(20*time.Millisecond, gone))
				generation := p.Node("box").Generation
				caller := harness.Dial(t, p.HTTP())
				caller.Send(p.request(chatOf(true)))
				response := caller.Head(limit, http.MethodPost)
				first := make([]byte, 1)
				if _, err := io.ReadFull(response.Body, first); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				c.lose(p.relay)
				rest, err := io.ReadAll(response.Body)
				between(t, "the caller's end", time.Since(start), 0, c.scale.of(c.after)+late)
				p.lost(t, append(first, rest...), err)
				between(t, "the end at the provider", await(t, gone, "the provider's connection is closed").Sub(start), 0, c.scale.of(c.after)+late)
				comesBack(t, p.Edge, generation, time.Minute)
				p.idle()
				p.works(t)
			})
		}
	}
}

// lost checks the stream of a caller whose node was lost.
func (p *pair) lost(t *testing.T, body []byte, cut error) {
	t.Helper()
	h, err := p.stream(body, !p.tunnel())
	switch {
	case h.Whole || (cut == nil) != (p.name == "runs"):
		t.Errorf("it ends in %+v, %v", h, cut)
	case !p.tunnel() && (err != nil || h.Failed != "node_lost"):
		t.Errorf("%v, %+v", err, h)
	}
}

// OL-08: two hosts serve one model in dialects of their own. The link of one falls silent: what it served ends by the dead
// limit, nobody waits longer, and then the other one serves everybody in every dialect.
func TestOneOfTwoDialectsIsGone(t *testing.T) {
	t.Parallel()
	const scaled = scale(8)
	second := fakeprovider.New(t, behindLists(fakeprovider.Speak(sayings()["reasoning"])))
	p := newLinkedPair(t, pairNames{"Ollama", "ollama"}, scaled, harness.Options{
		MoreNodes: harness.Record("other", fmt.Sprintf("[{name: gpu, kind: anthropic, base_url: %q, max_concurrency: 4}]", second.URL())),
		Routes:    `[{model: "*"}, {model: on-box, target: m, nodes: [box]}]`})
	_, timers := scaled.timers()
	harness.StartNodeAs(t, harness.TokenOf("other"), p.Addr.Nodes.String(), timers)
	p.AwaitReady("other")
	gone := make(chan time.Time, 8)
	p.says(ticking(20*time.Millisecond, gone))
	caller := harness.Dial(t, p.HTTP())
	q := chatOf(true)
	q.Model = "on-box"
	caller.Send(p.request(q))
	body := caller.Head(limit, http.MethodPost).Body
	start := time.Now()
	p.relay.Set(harness.Drop, harness.Drop)
	rest, err := io.ReadAll(body)
	between(t, "the end of what ran there", time.Since(start), 0, scaled.of(dead)+late)
	p.lost(t, rest, err)
	awaitFenced(t, p.Edge, "box", "dead", 1, late)
	for i := range 20 {
		s := speeches()[i%len(speeches())]
		q := chatOf(i%2 == 0)
		a := p.ask(s.request(q))
		other := &pair{speech: s, kind: kinds()[2]}
		h, err := other.read(a, q.Stream, !other.tunnel())
		if err != nil || a.Header.Get("X-IOP-Node") != "other" {
			t.Fatalf("%s: %v, %s", s.name, err, brief(a))
		}
		same(t, s.name, h, other.understood(sayings()["reasoning"], q))
	}
	p.relay.Set(harness.Pass, harness.Pass)
}

// HT-15: of an Ollama's paths only those of the surface reach it, and only spelled as they are; what changes its models is
// refused by name.
func TestPathsOfAnOllamaThatNobodyMayAskFor(t *testing.T) {
	t.Parallel()
	_, k := pairNames{"Ollama", "ollama"}.find()
	p := newPair(t, speeches()[2], k, harness.Options{}, 4)
	earlier := len(p.provider.Exchanges())
	for _, path := range []string{"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete", "/API/delete",
		"/api/delete?", `/api/\delete`, "/api/chat/", "//api/chat", "/api/chat/.", "/api/./chat", "/api/Chat", "/api/chat%00", "/api/chat;x=1", "/api%2fchat",
		"/api/generate/../pull", "/v1/messages/../../api/delete", "/v1//messages", "/v1/messages%2f..%2f..%2fapi%2fdelete", "/api/pull", "/api/push", "/api/create",
		"/api/copy", "/api/delete", "/api/blobs/sha256:00", "/api/blobs/../tags", "/api/ps/../delete", "/api/whatever"} {
		for _, method := range []string{"POST", "DELETE", "HEAD"} {
			a := p.ask(strings.Replace(harness.Post(path, chatBody), "POST", method, 1))
			switch a.StatusCode {
			case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
			default:
				t.Errorf("%s %s: got %s", method, path, brief(a))
			}
		}
	}
	if all := p.provider.Exchanges(); len(all) != earlier {
		t.Errorf("the provider got\n%s", all[earlier].Head)
	}
}

// HT-16: however the base is written that somebody copied from elsewhere, each path of the provider's is found, and the
// query stays as it is.
func TestPairsJoinTheBaseOnce(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		for base, prefix := range map[string]string{"": "", "/": "", "/v1": "", "/v1/": "", "/behind/a-proxy": "/behind/a-proxy", "/behind/v1": "/behind"} {
			t.Run(k.name+" at "+base, func(t *testing.T) {
				t.Parallel()
				lists := map[string]fakeprovider.Script{}
				for path, script := range fakeprovider.OllamaLists() {
					lists[strings.Replace(path, " ", " "+prefix, 1)] = script
				}
				lists["GET "+prefix+"/v1/models"] = fakeprovider.Models()
				known := fakeprovider.Routes(lists)
				provider := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
					if isProbe(x) {
						known(x)
						return
					}
					ok(x)
				})
				r := newRigWith(t, provider, setup{Options: harness.Options{
					Adapters: fmt.Sprintf("[{name: gpu, %s, base_url: %q, max_concurrency: 4}]", k.adapter, provider.URL()+base)}})
				const query = "?x=1%202&y=%2F..;"
				var want []string
				for _, path := range k.carries {
					wantWhole(t, r.ask(harness.Post(path+query, chatBody)), 200, `{"object":"chat.completion"}`)
					want = append(want, prefix+path+query)
				}
				r.ask(harness.Post("/iop/v1/runs", writeRun(chatOf(false)))) // the answer isn't one
				want = append(want, prefix+k.runs)
				var got []string
				for _, x := range r.seen() {
					got = append(got, x.Target)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

// CA-05: a run that is cancelled before, while and after it begins ends once: cancelled, or complete if it was faster. Its
// provider isn't asked after that.
func TestPairsCancelAtAnyMoment(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			runs := speeches()[slices.IndexFunc(speeches(), func(s speech) bool { return s.name == "runs" })]
			p := newPair(t, runs, k, harness.Options{}, 2)
			s := sayings()["text"]
			p.says(func(x *fakeprovider.Exchange) {
				x.Pause(3 * time.Millisecond)
				fakeprovider.Speak(s)(x)
			})
			var mu sync.Mutex
			ends := map[string]int{}
			all(4, func(i int) { // two of four wait
				for round := range 10 {
					end := p.cancelled(t, fmt.Sprintf("run-%d-%d", i, round), time.Duration(round*i)*300*time.Microsecond)
					mu.Lock()
					ends[end]++
					mu.Unlock()
				}
			})
			p.idle()
			for end := range ends {
				// 202: it was there; 409: it had ended; 404: it hadn't been heard of.
				if !slices.Contains([]string{"202: false cancelled", "202: true ", "409: true ", "404: true "}, end) {
					t.Errorf("%v", ends)
				}
			}
			t.Logf("%v", ends)
		})
	}
}

// cancelled starts a run and cancels it after a while. It returns what the cancel was answered, and how the run ended.
func (p *pair) cancelled(t *testing.T, id string, after time.Duration) string {
	t.Helper()
	answer := make(chan *harness.Answer, 1)
	go func() {
		a, err := harness.Ask(p.HTTP(), harness.Post(p.path, strings.Replace(p.write(chatOf(true)), "{", `{"run_id":"`+id+`",`, 1)), limit)
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	<-time.After(after)
	cancel, err := harness.Ask(p.HTTP(), harness.Post(p.path+"/"+id+"/cancel", ""), limit)
	if err != nil {
		t.Error(err)
		return "no answer"
	}
	a := await(t, answer, "the run's end")
	if a.StatusCode == 499 { // before its first event
		return fmt.Sprintf("%d: false cancelled", cancel.StatusCode)
	}
	h, err := p.stream(a.Bytes, true)
	if err != nil {
		t.Errorf("%v: %s", err, a.Bytes)
	}
	return fmt.Sprintf("%d: %v %s", cancel.StatusCode, h.Whole, h.Failed)
}
