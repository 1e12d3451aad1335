package service

import (
	"testing"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// What only the edge can know or may decide is not a node's to say, on whichever way it says it: a node that answers
// "unauthorized" must not have callers told that their key is wrong, nor may it cut them off as gone.
func TestANodeCantSpeakForTheEdge(t *testing.T) {
	edges := map[execution.Code]bool{}
	for _, c := range []execution.Code{execution.CodeUnauthorized, execution.CodeUnknownModel, execution.CodeUnknownAdapter,
		execution.CodeLimitExceeded, execution.CodeNoNode, execution.CodeQueueFull, execution.CodeQueueTimeout,
		execution.CodeEdgeDraining, execution.CodeDispatchTimeout, execution.CodeClientGone, execution.CodeClientSlow,
		execution.CodeCredentialUnavailable, execution.CodeCredentialReflected} {
		edges[c] = true
	}
	for _, c := range execution.Codes() {
		want := c
		if edges[c] {
			want = execution.CodeProtocol
		}
		for _, origin := range []pb.Origin{pb.Origin_ORIGIN_EDGE, pb.Origin_ORIGIN_NODE, pb.Origin_ORIGIN_PROVIDER, pb.Origin_ORIGIN_CALLER} {
			f := failureOf(&pb.Failure{Code: pb.FailureCode(c), Origin: origin, Text: "because"})
			if f.Code != want || f.Origin != execution.OriginNode && f.Origin != execution.OriginProvider {
				t.Errorf("%v of origin %v: %v of %v", c, origin, f.Code, f.Origin)
			}
		}
		f := failureOfEnd(&pb.RunEnd{Status: pb.RunStatus_RUN_STATUS_ERROR, Code: pb.FailureCode(c)})
		if f.Code != want {
			t.Errorf("an end with %v: %v", c, f.Code)
		}
	}
	for cause := execution.CauseClientGone; cause <= execution.CauseCredentialRevoked; cause++ {
		want := cause.Code()
		if edges[want] {
			want = execution.CodeProtocol
		}
		if f := cancelledByNode(pb.CancelCause(cause)); f.Code != want {
			t.Errorf("cancelled as %v: %v", cause, f.Code)
		}
	}
	// Which an earlier edge process had asked for.
	f := failureOfEnd(&pb.RunEnd{Status: pb.RunStatus_RUN_STATUS_CANCELLED, Code: pb.FailureCode_FAILURE_CODE_EDGE_DRAINING})
	if f.Code != execution.CodeEdgeDraining {
		t.Error(f)
	}
}
