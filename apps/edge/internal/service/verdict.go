package service

import (
	"context"
	"errors"
	"time"

	"iop/packages/go/execution"
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

// retryAfter is told with a refusal that is worth another try and for which nothing better is known.
const retryAfter = time.Second

func protocolFailure(text string) *execution.Failure {
	return &execution.Failure{Code: execution.CodeProtocol, Origin: execution.OriginNode, Text: text}
}

func nodeLost() *execution.Failure {
	return execution.Failf(execution.CodeNodeLost, execution.OriginEdge,
		"the connection to the node was lost after the request was sent; it may have been executed")
}
