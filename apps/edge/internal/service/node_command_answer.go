package service

import (
	"cmp"
	"net/http"
	"slices"

	"iop/apps/edge/internal/node"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// targets returns whom to ask: the node that was named, or every ready one that has the adapter, the best first.
func (q *commandCall) targets() ([]CommandTarget, *execution.Failure) {
	all := q.service.cfg.Commands()
	if q.NodeID != "" {
		for _, t := range all {
			if t.NodeID == q.NodeID {
				return []CommandTarget{t}, q.usable(t)
			}
		}
		return nil, nothingSent(execution.Failf(execution.CodeNoNode, execution.OriginEdge, "node %s isn't connected", q.NodeID))
	}
	var unfit *execution.Failure
	fit := slices.DeleteFunc(slices.Clone(all), func(t CommandTarget) bool {
		told, _ := t.Conn.Has(q.Adapter)
		f := q.usable(t)
		if told && f != nil {
			unfit = f
		}
		return !told || f != nil || t.State != node.StateReady
	})
	switch {
	case len(fit) > 0:
	case unfit != nil:
		return nil, unfit
	case !q.service.configured(q.Adapter):
		return nil, nothingSent(execution.Failf(execution.CodeUnknownAdapter, execution.OriginEdge, "no node has an adapter of that name"))
	default:
		return nil, nothingSent(execution.Failf(execution.CodeNoNode, execution.OriginEdge, "no node that is ready has the adapter"))
	}
	slices.SortStableFunc(fit, func(a, b CommandTarget) int {
		return cmp.Or(down(a.Conn, q.Adapter)-down(b.Conn, q.Adapter), cmp.Compare(a.NodeID, b.NodeID))
	})
	return fit, nil
}

// configured reports whether any node is to have an adapter of that name.
func (s *Service) configured(adapter string) bool {
	nodes := s.cfg.State().Edge.Nodes
	return slices.ContainsFunc(nodes, func(n config.NodeRecord) bool {
		return slices.ContainsFunc(n.Adapters, func(a config.Adapter) bool { return a.Name == adapter })
	})
}

// down is 1 for an adapter whose provider can't be asked.
func down(c CommandConn, adapter string) int {
	if _, available := c.Has(adapter); available {
		return 0
	}
	return 1
}

// usable says why a node can't be asked this now. An unresponsive one can: an answer is what it lacks.
func (q *commandCall) usable(t CommandTarget) *execution.Failure {
	code, text := execution.CodeOK, ""
	told, _ := t.Conn.Has(q.Adapter)
	switch {
	case t.State == node.StateRegistered, t.State == node.StateNotReady:
		code, text = execution.CodeNoNode, "node "+t.NodeID+" hasn't said yet that it is ready"
	case t.State == node.StateDraining:
		code, text = execution.CodeNodeDraining, "node "+t.NodeID+" takes no new work"
	case t.State != node.StateReady && t.State != node.StateUnresponsive:
		code, text = execution.CodeNoNode, "node "+t.NodeID+" isn't connected"
	case q.Adapter != "" && !told:
		code, text = execution.CodeUnknownAdapter, "node "+t.NodeID+" has no adapter of that name"
	case q.Type == CommandOllamaAPI && !t.Conn.OllamaAPI():
		code, text = execution.CodeBadRequest, "node "+t.NodeID+" doesn't know the command OLLAMA_API; upgrade it"
	default:
		return nil
	}
	f := nothingSent(execution.Failf(code, execution.OriginEdge, "%s", text))
	if code == execution.CodeNodeDraining {
		f.RetryAfter = retryAfter
	}
	return f
}

func nothingSent(f *execution.Failure) *execution.Failure {
	f.NothingSent = true
	return f
}

// posts reports whether the command has a body.
func (q *commandCall) posts() bool { return q.Type == CommandOllamaAPI && q.Method == http.MethodPost }

// receive takes what the node says until its last word. heard is called at its first.
func (q *commandCall) receive(heard func()) {
	if q.Type == CommandOllamaAPI {
		q.receiveTunnel(heard)
		return
	}
	for seq := uint64(1); !q.over; seq++ {
		m, err := q.stream.ReadCommand()
		if err != nil {
			q.readFailed(err)
			return
		}
		heard()
		first := seq == 1
		opens := m.GetAccepted() != nil || m.GetRejected() != nil
		if m.GetSeq() != seq || opens != first || m.GetSessionId() != q.SessionID || !q.take(m) {
			q.fail(protocolFailure("the node answered the command with something that isn't due"))
			return
		}
	}
}

// take handles one message of a command that isn't OLLAMA_API. False: it has no business here.
func (q *commandCall) take(m *pb.NodeCommandResponse) bool {
	switch v := m.GetResponse().(type) {
	case *pb.NodeCommandResponse_Accepted:
		q.accept()
		return true
	case *pb.NodeCommandResponse_Rejected:
		q.refused(v.Rejected)
	case *pb.NodeCommandResponse_Error:
		q.fail(failureOf(v.Error))
	case *pb.NodeCommandResponse_Capabilities:
		if q.Type != CommandCapabilities {
			return false
		}
		q.out.Capabilities = capabilitiesOf(v.Capabilities)
	case *pb.NodeCommandResponse_TransportStatus:
		if q.Type != CommandTransportStatus {
			return false
		}
		s := v.TransportStatus
		q.out.Transport = &TransportStatus{Generation: s.GetConnectionGeneration(), LinkAgeMS: max(0, s.GetLinkAgeMs()),
			OpenStreams: max(0, int(s.GetOpenStreams())), InFlight: max(0, int(s.GetInFlight()))}
	default:
		return false
	}
	q.over = true
	return true
}

func (q *commandCall) accept() {
	q.accepted = true
	q.target.Conn.CommandAccepted()
}

// refused ends a command that the node didn't begin. It may know better than the edge which adapters it has.
func (q *commandCall) refused(m *pb.Rejected) {
	f := failureOf(m.GetFailure())
	if m.GetFailure().GetCode() == pb.FailureCode_FAILURE_CODE_UNKNOWN_ADAPTER {
		f = execution.Failf(execution.CodeUnknownAdapter, execution.OriginNode, "the node has no adapter of that name")
	}
	f.NothingSent = f.NothingSent || m.GetNeverStarted()
	if f.RetryAfter == 0 && transient(f.Code) {
		f.RetryAfter = retryAfter
	}
	q.fail(f)
}

// receiveTunnel takes the provider's response.
func (q *commandCall) receiveTunnel(heard func()) {
	order := execution.NewSequence(execution.KindTunnel)
	for !q.over && q.out.Failure == nil {
		m, err := read(q.stream, execution.KindTunnel)
		if err != nil {
			q.readFailed(err)
			return
		}
		heard()
		if err := order.Accept(m.step, m.seq); err != nil {
			q.fail(execution.AsFailure(err, execution.OriginNode))
			return
		}
		q.takeFrame(&m)
	}
}

func (q *commandCall) takeFrame(m *message) {
	switch m.step {
	case execution.StepAccepted:
		if id := m.frame.GetAccepted().GetSessionId(); id != q.SessionID {
			q.fail(protocolFailure("the node accepted the command for another session"))
			return
		}
		q.accept()
	case execution.StepRejected:
		q.over = true
		q.refused(m.rejected())
	case execution.StepHead:
		q.head(m.frame.GetHead())
	case execution.StepBody:
		q.piece(m.body)
	case execution.StepEnd:
		q.over = true
		q.finished(m.frame.GetEnd())
	case execution.StepError:
		q.over = true
		q.fail(failureOf(m.failure()))
	}
}

func (q *commandCall) head(h *pb.TunnelHead) {
	status := int(h.GetStatus())
	if status < 200 || status > 999 {
		q.fail(protocolFailure("the node passed on a status that isn't the final one of a response"))
		return
	}
	q.out.Status, q.out.Header = status, headerOf(h.GetHeaders())
	if q.Sink != nil {
		q.out.HeadSent = true
		q.sank(q.Sink.Head(status, q.out.Header))
	}
}

func (q *commandCall) piece(p []byte) {
	if q.out.Bytes+int64(len(p)) > MaxCommandAnswer {
		q.fail(execution.Failf(execution.CodeUpstreamError, execution.OriginNode, "the answer is over %d bytes", MaxCommandAnswer))
		return
	}
	q.out.Bytes += int64(len(p))
	if q.Sink != nil {
		q.sank(q.Sink.Body(p, !q.stream.Buffered()))
		return
	}
	q.out.Body = append(q.out.Body, p...)
}

func (q *commandCall) finished(e *pb.TunnelEnd) {
	switch {
	case e.GetBytes() != q.out.Bytes:
		q.fail(execution.Failf(execution.CodeProtocol, execution.OriginNode, "the node counts %d bytes of response, %d arrived", e.GetBytes(), q.out.Bytes))
	case q.Sink != nil:
		q.sank(q.Sink.End())
	}
}

// sank ends the command when nobody takes the answer any more.
func (q *commandCall) sank(err error) {
	if err != nil {
		q.fail(execution.AsFailure(err, execution.OriginEdge))
	}
}

// What a node says about itself is shown to people: it is cut to these lengths, in bytes.
const (
	maxShownText  = 256
	maxShownModel = 512
)

func capabilitiesOf(m *pb.Capabilities) []AdapterCapabilities {
	out := make([]AdapterCapabilities, len(m.GetAdapters()))
	for i, a := range m.GetAdapters() {
		out[i] = AdapterCapabilities{
			Name: shorten(a.GetName(), maxID), Available: a.GetAvailable(), Reason: shorten(a.GetReason(), maxShownText),
			Version: shorten(a.GetVersion(), maxShownText), InFlight: max(0, int(a.GetInFlight())), Capacity: max(0, int(a.GetCapacity())),
			Models: make([]ModelCapabilities, len(a.GetModels())),
		}
		for j, model := range a.GetModels() {
			out[i].Models[j] = ModelCapabilities{Name: shorten(model.GetName(), maxShownModel), Loaded: model.GetLoaded(), Context: max(0, model.GetContext())}
		}
	}
	return out
}
