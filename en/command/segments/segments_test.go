package segments_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/colonyfleet/colony/en/command/segments"
	"github.com/colonyfleet/colony/en/command/segments/segmentstest"
	wire "github.com/colonyfleet/colony/protocol/command"
)

func none(bool) bool { return false }

// What is given arrives whole, where a third of all messages get lost, too.
func TestGive(t *testing.T) {
	t.Parallel()
	content := make([]byte, 200_000)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range content {
		content[i] = byte(random.Uint32())
	}
	up, down := rand.New(rand.NewPCG(2, 2)), rand.New(rand.NewPCG(3, 3))
	for name, lose := range map[string]func(bool) bool{"no loss": none, "loss": func(isUp bool) bool {
		if isUp {
			return up.IntN(3) == 0
		}
		return down.IntN(3) == 0
	}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in virtual time
				got, err := segmentstest.Give(t, lose, func(ctx context.Context, id wire.ID, key []byte, live segments.Live) error {
					return segments.New(id, key, live).Give(ctx, func(_ context.Context, w io.Writer) error {
						_, err := w.Write(content)
						return err
					})
				})
				if err != nil || !bytes.Equal(got, content) {
					t.Errorf("%d of %d bytes arrived, %v", len(got), len(content), err)
				}
			})
		})
	}
}

// What fails is the error, also while it waits for room; and so is the end of the command.
func TestGiveFails(t *testing.T) {
	t.Parallel()
	fault := errors.New("the disk has failed")
	for range 2_000 { // which goroutine sees the end first differs
		_, err := segmentstest.Give(t, none, func(ctx context.Context, id wire.ID, key []byte, live segments.Live) error {
			return segments.New(id, key, live).Give(ctx, func(context.Context, io.Writer) error { return fault })
		})
		if !errors.Is(err, fault) {
			t.Fatalf("got %v", err)
		}
	}
	over := errors.New("nobody reads")
	written := make(chan error, 1)
	_, err := segmentstest.Give(t, func(up bool) bool { return !up }, func(ctx context.Context, id wire.ID, key []byte, live segments.Live) error {
		ctx, end := context.WithCancelCause(ctx)
		return segments.New(id, key, live).Give(ctx, func(_ context.Context, w io.Writer) error {
			go end(over)
			_, err := w.Write(make([]byte, 1<<20)) // nothing is acknowledged
			written <- err
			return err
		})
	})
	if !errors.Is(err, over) || !errors.Is(<-written, over) {
		t.Errorf("got %v", err)
	}
}
