package service

import (
	"context"
	"errors"
	"time"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// verdict translates the cause of a run's context, which is its outcome, into the failure that the caller is told (nil
// for success) and the cause that a node is told with a cancel. It is the one place that does.
func verdict(cause error) (*execution.Failure, execution.CancelCause) {
	switch c := cause.(type) {
	case execution.CancelCause:
		return cancelled(c), c
	case *execution.Failure:
		return c, causeOf(c.Code)
	}
	switch {
	case cause == errDone:
		return nil, 0
	case cause == errDeparted:
		return &execution.Failure{Code: execution.CodeEdgeDraining, Origin: execution.OriginEdge,
			Text: "the edge is shutting down; the run goes on at its node"}, execution.CauseEdgeDraining
	case errors.Is(cause, context.DeadlineExceeded):
		return cancelled(execution.CauseDeadline), execution.CauseDeadline
	}
	// The caller's context ended and didn't say why: its connection is gone.
	return cancelled(execution.CauseClientGone), execution.CauseClientGone
}

// cancelled is the failure of a run that ended for cause.
func cancelled(cause execution.CancelCause) *execution.Failure {
	f := &execution.Failure{Code: cause.Code(), Origin: execution.OriginEdge}
	switch cause {
	case execution.CauseClientGone:
		f.Origin, f.Text = execution.OriginCaller, "the caller closed its connection"
	case execution.CauseClientSlow:
		f.Origin, f.Text = execution.OriginCaller, "the caller didn't take the response"
	case execution.CauseAPI:
		f.Origin, f.Text = execution.OriginCaller, "the run was cancelled on request"
	case execution.CauseDeadline:
		f.Text = "the run's deadline passed"
	case execution.CauseLinkLost:
		f.Text = "the connection to the node was lost"
	case execution.CauseEdgeDraining:
		f.Text, f.RetryAfter = "the edge is shutting down", retryAfter
	case execution.CauseNodeDraining:
		f.Text, f.RetryAfter = "the node is shutting down", retryAfter
	case execution.CauseCredentialRevoked:
		f.Text = "the credential was revoked"
	}
	return f
}

// causeOf is what a node is told when its run ends with a failure that the edge found.
func causeOf(code execution.Code) execution.CancelCause {
	switch code {
	case execution.CodeClientGone:
		return execution.CauseClientGone
	case execution.CodeClientSlow:
		return execution.CauseClientSlow
	case execution.CodeDeadline, execution.CodeDispatchTimeout:
		return execution.CauseDeadline
	case execution.CodeNodeLost:
		return execution.CauseLinkLost
	case execution.CodeEdgeDraining:
		return execution.CauseEdgeDraining
	}
	return execution.CauseAPI
}

// cancelledByNode is the failure of a run that the node ended by itself.
func cancelledByNode(cause pb.CancelCause) *execution.Failure {
	if cause <= 0 || cause > pb.CancelCause_CANCEL_CAUSE_CREDENTIAL_REVOKED {
		return &execution.Failure{Code: execution.CodeCancelled, Origin: execution.OriginNode, Text: "the node cancelled the run"}
	}
	c := execution.CancelCause(cause)
	if !nodesToSay(c.Code()) { // had the edge asked for it, the run would have ended with that
		return notTheirs(c.Code())
	}
	f := cancelled(c)
	f.Origin, f.Text = execution.OriginNode, "the node cancelled the run: "+c.Error()
	return f
}

// failureOfEnd is the failure that a node reported of a run that it had without a connection; nil = it succeeded.
func failureOfEnd(e *pb.RunEnd) *execution.Failure {
	if e.GetStatus() == pb.RunStatus_RUN_STATUS_COMPLETE {
		return nil
	}
	code, why := execution.Code(e.GetCode()), "the execution failed while the connection to its node was lost; the node's store has more"
	cancelled := e.GetStatus() == pb.RunStatus_RUN_STATUS_CANCELLED
	if cancelled {
		why = "the node cancelled the run"
	}
	switch {
	case cancelled && code == execution.CodeEdgeDraining: // an earlier edge process had asked for it
	case e.GetCode() > 0 && e.GetCode() <= 255 && !nodesToSay(code):
		return notTheirs(code)
	case e.GetCode() > 0 && e.GetCode() <= 255:
	case cancelled:
		code = execution.CodeCancelled
	default:
		return protocolFailure("the node reported a failure without a code")
	}
	return &execution.Failure{Code: code, Origin: execution.OriginNode, Text: why}
}

// retryAfter is told with a refusal that is worth another try and for which nothing better is known.
const retryAfter = time.Second

func protocolFailure(text string) *execution.Failure {
	return &execution.Failure{Code: execution.CodeProtocol, Origin: execution.OriginNode, Text: text}
}

func nodeLost() *execution.Failure {
	return execution.Failf(execution.CodeNodeLost, execution.OriginEdge,
		"the connection to the node was lost after the request was sent; it may have been executed")
}
