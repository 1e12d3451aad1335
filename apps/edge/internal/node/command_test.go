package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
)

// A connection's turns: four at once, further ones wait within their time, and not for a link that is over.
func TestCommandTurns(t *testing.T) {
	b := newBench(t, record("a"))
	c := b.commit(t, "a")
	var leave []func()
	for range 4 {
		l, err := c.EnterCommand(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	stop(execution.CauseAPI)
	if _, err := c.EnterCommand(ctx); err != error(execution.CauseAPI) {
		t.Errorf("a wait that was given up: %v", err)
	}
	leave[0]()
	leave[0]() // does nothing
	if _, ok := c.TryCommand(); !ok {
		t.Error("no turn came back")
	}
	if _, ok := c.TryCommand(); ok {
		t.Error("a turn came back twice")
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := c.EnterCommand(context.Background())
		waiting <- err
	}()
	c.Link.Close(transport.ReasonLost)
	select {
	case err := <-waiting:
		if !errors.Is(err, transport.ErrLinkDown) {
			t.Errorf("a wait for a link that is over: %v", err)
		}
	case <-time.After(patience.Limit):
		t.Error("it waits for a link that is over")
	}
}
