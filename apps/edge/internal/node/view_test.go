package node_test

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/node"
	pb "iop/proto/iop"
)

// design.md §10: the names of GET /admin/v1/nodes are settled.
func TestNodeViewNames(t *testing.T) {
	b := newBench(t, record("a"))
	c := b.commit(t, "a")
	if err := c.Ready(b.ready("a", "m")); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(b.Nodes()[0])
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		ID            *string    `json:"id"`
		State         *string    `json:"state"`
		Generation    *uint64    `json:"generation"`
		InstanceID    *string    `json:"instance_id"`
		Version       *string    `json:"version"`
		Since         *time.Time `json:"since"`
		LastHeartbeat *time.Time `json:"last_heartbeat"`
		Adapters      []map[string]any
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if v.ID == nil || *v.ID != "a" || *v.State != "ready" || *v.Generation != c.Generation || *v.Version != "1.2" ||
		*v.InstanceID != "01020300000000000000000000000000" || v.Since == nil || v.LastHeartbeat == nil {
		t.Errorf("view %s", data)
	}
	var keys []string
	for k := range v.Adapters[0] {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	if want := []string{"available", "capacity", "in_flight", "kind", "models", "name", "reason", "version"}; !slices.Equal(keys, want) {
		t.Errorf("adapter has %v, want %v", keys, want)
	}
	if m, _ := json.Marshal(v.Adapters[0]["models"]); string(m) != `[{"loaded":false,"name":"m"}]` {
		t.Errorf("models %s", m)
	}
}

func TestNodesThatAreNotConnected(t *testing.T) {
	off := record("off")
	off.Enabled = false
	b := newBench(t, record("never"), off, record("gone"), record("here"), record("unlisted"))
	b.Fence(b.commit(t, "gone"), node.FenceLost, "")
	b.commit(t, "here")
	b.commit(t, "unlisted")
	b.configure(record("never"), off, record("gone"), record("here"))
	var got []string
	for _, v := range b.Nodes() {
		got = append(got, v.ID+" "+string(v.State))
		if v.State == node.StateOffline && (v.Since != nil || v.LastHeartbeat != nil || v.Adapters == nil) {
			t.Errorf("view %+v", v)
		}
		if v.ID == "gone" && (v.Generation == 0 || v.Version != "1.2") {
			t.Errorf("what is left of it: %+v", v)
		}
	}
	want := []string{"never offline", "off disabled", "gone offline", "here registered", "unlisted registered"}
	if !slices.Equal(got, want) {
		t.Errorf("nodes %v, want %v", got, want)
	}
}

// Models stay listed for a short while after the link was lost and until the next one is ready.
func TestModelsOutliveAReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, record("a"), record("b"))
		list := func() (got []string) {
			for _, m := range b.Models() {
				for _, model := range m.Models {
					s := m.NodeID + "/" + m.Adapter + "/" + model.Name
					if m.Ready {
						s += " ready"
					}
					got = append(got, s)
				}
			}
			return got
		}
		want := func(want ...string) {
			t.Helper()
			if got := list(); !slices.Equal(got, want) {
				t.Errorf("models %v, want %v", got, want)
			}
		}
		ready := func(c *node.Connection, models ...string) {
			t.Helper()
			if err := c.Ready(b.ready(c.NodeID, models...)); err != nil {
				t.Fatal(err)
			}
		}
		want()
		c := b.commit(t, "a")
		want()
		ready(c, "m")
		want("a/one/m ready", "a/two/m ready")
		b.Fence(c, node.FenceLost, "")
		want("a/one/m", "a/two/m")
		time.Sleep(59 * time.Second)
		want("a/one/m", "a/two/m")
		// A connection that never gets ready neither hides nor prolongs it.
		c = b.commit(t, "a")
		want("a/one/m", "a/two/m")
		b.Fence(c, node.FenceLost, "")
		want("a/one/m", "a/two/m")
		time.Sleep(2 * time.Second)
		want()
		c = b.commit(t, "a")
		ready(c, "new")
		want("a/one/new ready", "a/two/new ready")
		// A takeover, too.
		c = b.commit(t, "a")
		want("a/one/new", "a/two/new")
		// What the node says isn't available is not on offer.
		m := b.ready("a", "new")
		m.Adapters[1].Available = false
		if err := c.Ready(m); err != nil {
			t.Fatal(err)
		}
		want("a/one/new ready")
		c.Status(&pb.NodeStatus{Number: 1, Draining: true, Adapters: m.Adapters})
		want("a/one/new")
		b.Fence(c, node.FenceLeft, "")
		want("a/one/new")
		// What is no longer configured isn't listed.
		b.configure(record("b"))
		want()
	})
}

// A view is a copy: it doesn't change with the connection.
func TestViewIsACopy(t *testing.T) {
	b := newBench(t, record("a"))
	c := b.commit(t, "a")
	if err := c.Ready(b.ready("a", "m")); err != nil {
		t.Fatal(err)
	}
	v := b.Nodes()[0]
	c.Status(&pb.NodeStatus{Number: 1, Draining: true})
	if v.State != node.StateReady || !v.Adapters[0].Available {
		t.Errorf("view %+v", v)
	}
}
