package diagnose

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"iop/packages/go/doctor"
	"iop/packages/go/execution"
	"iop/packages/go/identity"
)

// request sends one small chat through the whole path, as a caller does, and says how long each part of it took.
func (x *examination) request(ctx context.Context) []doctor.Finding {
	const check = "request"
	model := x.model()
	if model == "" {
		return []doctor.Finding{doctor.Failed(check, "name a model: --request MODEL", "there is nothing to ask for: the file has no route of a model's own name, and no ready node is known to have one")}
	}
	ctx, cancel := context.WithTimeout(ctx, x.opts.Deadline)
	defer cancel()
	t := trial{check: check, model: model, key: x.opts.APIKey != "", started: time.Now()}
	resp, err := x.send(ctx, model)
	if err != nil {
		return []doctor.Finding{t.unsent(ctx, err, x.opts.Deadline)}
	}
	defer resp.Body.Close()
	return []doctor.Finding{t.judge(ctx, resp, x.opts.Deadline)}
}

// model is what is to be asked for: what was named, or that of the first route; for the route of all models the first
// that a ready node has.
func (x *examination) model() string {
	if *x.opts.Request != "" || len(x.cfg.Routes) == 0 {
		return *x.opts.Request
	}
	if first := x.cfg.Routes[0].Model; first != "*" {
		return first
	}
	if offered := x.offered.Load(); offered != nil {
		return *offered
	}
	return ""
}

// send sends the request.
func (x *examination) send(ctx context.Context, model string) (*http.Response, error) {
	body, err := json.Marshal(map[string]any{"model": model, "stream": true, "max_tokens": 16,
		"messages": []map[string]string{{"role": "user", "content": "Say ok."}}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.httpURL()+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if x.opts.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+x.opts.APIKey)
	}
	return client(&http.Transport{TLSClientConfig: x.ownListener()}).Do(req)
}

// errOther says that somebody else, or an Edge that runs on from before, has the port.
var errOther = errors.New("what listens there shows another certificate than the file holds: restart the Edge after a renewal")

// ownListener believes only whoever shows the certificate that the file names: it is that of a public name, and dialed is
// this machine.
func (x *examination) ownListener() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(cs tls.ConnectionState) error {
		certs, err := identity.ReadCertificates(x.cfg.Listen.HTTPTLS.Cert)
		if err != nil {
			return err
		}
		if len(cs.PeerCertificates) == 0 || !cs.PeerCertificates[0].Equal(certs[0]) {
			return errOther
		}
		return nil
	}}
}

// trial is one test request.
type trial struct {
	check, model string
	key          bool
	started      time.Time
}

// unsent says why there was no answer at all.
func (t *trial) unsent(ctx context.Context, err error, limit time.Duration) doctor.Finding {
	if ctx.Err() != nil {
		return t.late(limit)
	}
	return doctor.Failed(t.check, "see the checks of the listeners above", "%s couldn't be asked for: %v", t.model, errors.Unwrap(err))
}

func (t *trial) late(limit time.Duration) doctor.Finding {
	return doctor.Failed(t.check, "iop-edge ctl queue and iop-edge ctl runs show where it waits; a model that is being loaded may need longer: --deadline",
		"%s wasn't answered within %v", t.model, limit)
}

// maxReply bounds what is read of the answer: sixteen tokens, and what surrounds them.
const maxReply = 1 << 20

// judge reads the answer to its end.
func (t *trial) judge(ctx context.Context, resp *http.Response, limit time.Duration) doctor.Finding {
	var first time.Duration
	var reply bytes.Buffer
	b := make([]byte, 4096)
	for {
		n, err := resp.Body.Read(b)
		if n > 0 && first == 0 {
			first = time.Since(t.started)
		}
		reply.Write(b[:n])
		switch {
		case reply.Len() > maxReply:
			return doctor.Failed(t.check, "look at the provider", "the answer of %s doesn't end", t.model)
		case err == io.EOF:
			return t.ended(resp, first, reply.Bytes())
		case err != nil && ctx.Err() != nil:
			return t.late(limit)
		case err != nil:
			f := t.failed(resp, reply.Bytes())
			f.Text += "; the answer was cut"
			return f
		}
	}
}

// ended says how a whole answer was.
func (t *trial) ended(resp *http.Response, first time.Duration, reply []byte) doctor.Finding {
	if resp.StatusCode != http.StatusOK {
		return t.failed(resp, reply)
	}
	return doctor.Well(t.check, "%s answered: node %s, waited %s ms for a place, first byte after %v, end after %v", t.model, orUnknown(resp.Header.Get("X-IOP-Node")),
		orUnknown(resp.Header.Get("X-IOP-Queue-Ms")), first.Round(time.Millisecond), time.Since(t.started).Round(time.Millisecond))
}

// failed says what an error means, and who can do what about it.
func (t *trial) failed(resp *http.Response, reply []byte) doctor.Finding {
	code, text := failure(reply)
	where := ""
	if node := resp.Header.Get("X-IOP-Node"); node != "" {
		where = fmt.Sprintf(" at node %s after %s ms in the queue", node, orUnknown(resp.Header.Get("X-IOP-Queue-Ms")))
	}
	remedy := Advise(code)
	if code == execution.CodeUnauthorized.String() && !t.key {
		remedy = "give an API key with --key-file FILE or IOP_API_KEY (iop-edge key new NAME makes one)"
	}
	if code == "" {
		code = resp.Status
	}
	return doctor.Failed(t.check, remedy, "%s ended as %s%s: %s", t.model, code, where, orUnknown(text))
}

// failure finds the error in an answer: a body of its own, or the last event of a stream.
func failure(reply []byte) (code, text string) {
	var last struct {
		Error struct {
			Code    any    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	for line := range bytes.Lines(reply) {
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("data: ")))
		_ = json.Unmarshal(line, &last) // most lines are others
	}
	if last.Error.Message == "" {
		_ = json.Unmarshal(reply, &last) // one object of many lines
	}
	code, _ = last.Error.Code.(string)
	return code, last.Error.Message
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// Advise says what to do about a failure code; one that isn't known is a provider's own.
func Advise(code string) string {
	for c, text := range advices() {
		if c.String() == code {
			return text
		}
	}
	return "it is the provider's own answer: look at its log, and at docs/adapters.md"
}

// advices has a row for each failure code.
func advices() map[execution.Code]string {
	return map[execution.Code]string{
		execution.CodeBadRequest:            "the path can't be served by this route's adapters: iop-edge ctl why MODEL",
		execution.CodeUnauthorized:          "use a key whose hash stands in principals (iop-edge key new NAME makes one)",
		execution.CodeUnknownModel:          "ask for a model that GET /v1/models lists, or add a route; the key's principal may be limited to others",
		execution.CodeUnknownAdapter:        "correct the adapter's name in the route",
		execution.CodeLimitExceeded:         "the principal's own limits are reached: wait, or raise its limits",
		execution.CodeBodyTooLarge:          "raise limits.body",
		execution.CodeNoNode:                "no node serves it: see the checks of nodes and routes above, or iop-edge ctl why MODEL",
		execution.CodeQueueFull:             "too many wait: add places (max_concurrency, nodes), or raise the route's queue.depth",
		execution.CodeQueueTimeout:          "all places stayed taken for queue.wait: add places, or raise it; iop-edge ctl queue shows them",
		execution.CodeOverloaded:            "the Edge's own limits are reached (limits.body_memory, limits.connections): raise them, or wait",
		execution.CodeEdgeDraining:          "the Edge is stopping: ask again when it is back",
		execution.CodeNodeDraining:          "the node is stopping: start it again, or add another",
		execution.CodeNodeLost:              "the link broke while it ran: look at both logs and at the network between them; iop-node doctor there",
		execution.CodeDispatchTimeout:       "the node doesn't take what it is sent: run iop-node doctor there, and look at its log",
		execution.CodeAdapterBusy:           "the provider is busy beyond the Edge's count: does somebody else use it? lower max_concurrency",
		execution.CodeAdapterUnavailable:    "the provider can't be used: run iop-node doctor on that machine",
		execution.CodeAdapterDecode:         "the provider answers in a form that its adapter doesn't know: is its kind right, and which version is it?",
		execution.CodeAdapterPanic:          "a bug in the node's adapter: its log has the place; please report it",
		execution.CodeUpstreamConnect:       "the node can't connect to the provider: start it, or correct base_url; iop-node doctor there",
		execution.CodeUpstreamError:         "the provider refused or failed: look at its log; does it have the model?",
		execution.CodeUpstreamTruncated:     "the provider broke its answer off: look at its log, it may have run out of memory",
		execution.CodeFirstByteTimeout:      "the provider didn't begin in time: is it loading the model? raise first_byte of the route",
		execution.CodeIdleTimeout:           "the provider paused for too long: look at its log, or raise idle of the route",
		execution.CodeDeadline:              "the route's deadline was too short: raise it",
		execution.CodeClientGone:            "doctor itself went away: ask again",
		execution.CodeClientSlow:            "doctor didn't read in time: is this machine overloaded?",
		execution.CodeCancelled:             "somebody cancelled it (iop-edge ctl cancel): ask again",
		execution.CodeCredentialUnavailable: "the route's slot has no usable key: see the checks of slots above, and iop-edge ctl slots",
		execution.CodeCredentialRefused:     "the node refused the key's lease: iop-edge ctl events says why; are clocks and projections right?",
		execution.CodeCredentialReflected:   "the provider sent its key back: don't use it until you know why",
		execution.CodeStaleProjection:       "the node hasn't taken in the last change of the file yet: ask again; if it stays so, look at its log",
		execution.CodeDuplicateRun:          "a run of that id is known already: ask again",
		execution.CodeProtocol:              "node and Edge don't understand each other: bring both to the same version",
		execution.CodeInternal:              "a bug: the Edge's log has the place; please report it",
	}
}
