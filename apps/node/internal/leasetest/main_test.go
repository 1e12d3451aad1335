// Package leasetest holds what leases promise of the node as a whole: real drivers, real TLS, a provider that says what
// it was shown, and this process's own memory, looked through for what must not be there. It has tests only.
package leasetest

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters"
	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/router"
	"iop/apps/node/internal/store"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// TestMain makes the certificate of every httptest server one that this process trusts, as an operator's CA is: the
// drivers know no other way. With providerMode set the process is a provider instead.
func TestMain(m *testing.M) {
	if os.Getenv(providerMode) != "" {
		serveProvider()
		return
	}
	os.Exit(trusting(m))
}

func trusting(m *testing.M) int {
	dir, err := os.MkdirTemp("", "leasetest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	lender := httptest.NewTLSServer(nil)
	lender.Close()
	file := filepath.Join(dir, "roots.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: lender.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = os.Setenv("SSL_CERT_FILE", file) // before the roots are loaded, which is once
	return m.Run()
}

// rig is a node with the real openai driver at a provider, which may be lent keys, and its edge.
type rig struct {
	*nodetest.EdgeSide
	lender  *nodetest.Lender
	session *node.Session
}

type setup struct {
	log     zerolog.Logger
	journal *store.Journal
	header  string // of the profile; "" = Authorization, with Bearer before the key
}

// newRig connects a node whose adapter "a" is at url, which is https://127.0.0.1:PORT.
func newRig(t testing.TB, url string, change ...func(*setup)) *rig {
	t.Helper()
	s := setup{log: zerolog.Nop()}
	for _, c := range change {
		c(&s)
	}
	x := node.New(node.Config{
		Edge: "edge:1", Router: router.New(), Journal: s.journal, Log: s.log,
		Build: func(spec router.Spec) (execution.Provider, error) {
			return adapters.Build(adapters.Config{Name: spec.Name, Kind: spec.Kind, BaseURL: spec.BaseURL, MaxConcurrency: spec.Capacity,
				AllowPaths: spec.AllowPaths, Targets: spec.Targets, Log: s.log})
		},
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), nodetest.Limit)
		defer cancel()
		x.Close(ctx)
	})
	r := &rig{lender: nodetest.NewLender(t, 7, url)}
	if s.header != "" {
		r.lender.Header, r.lender.Scheme = s.header, ""
	}
	edge, local := nodetest.ConnPair(t)
	r.attach(t, x, local)
	r.EdgeSide = nodetest.NewEdgeSide(t, edge, 7, transport.Config{})
	r.session.Apply(context.Background(), r.lender.Extend(&pb.NodeConfigPayload{Projection: 1, Adapters: []*pb.AdapterConfig{
		{Name: "a", Kind: "openai", BaseUrl: url + "/v1", MaxConcurrency: 4, AdapterRevision: 1, Targets: []string{"m"}}}}))
	r.session.Serve()
	r.Ready()
	return r
}

// attach runs the node's end of the connection.
func (r *rig) attach(t testing.TB, x *node.Executor, local net.Conn) {
	h := &handler{}
	mux := transport.NewNodeLink(local, transport.Config{Log: zerolog.Nop()}, h)
	h.session = x.NewSession(mux, 7, node.Features()...)
	h.session.UseLeases(r.lender.Guard, r.lender.Now)
	r.session = h.session
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = mux.Run(context.Background())
	}()
	t.Cleanup(func() { mux.Close(transport.ReasonClosed); <-ended; h.session.End() })
}

type handler struct{ session *node.Session }

func (h *handler) Work(s *transport.Stream) { h.session.Work(s) }
func (h *handler) Control(m *pb.EdgeControl) {
	if c := m.GetCancel(); c != nil {
		h.session.Cancel(c)
	}
}

// headers adds header fields of the caller to a tunnel's open.
func headers(open *pb.WorkOpen, fields ...string) *pb.WorkOpen {
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		open.GetTunnel().Headers = append(open.GetTunnel().Headers, &pb.Header{Name: name, Value: []byte(value)})
	}
	return open
}

// wantLease checks what a run's end says of its lease.
func wantLease(t testing.TB, end *pb.RunEnd, state credentiallease.State, reason credentiallease.Reason) {
	t.Helper()
	if end.GetLeaseState() != pb.LeaseState(state) || end.GetLeaseReason() != pb.LeaseReason(reason) {
		t.Errorf("the end says of its lease: %v %v", end.GetLeaseState(), end.GetLeaseReason())
	}
}
