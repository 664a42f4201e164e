package progress

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWriter has git print its progress, in pieces, beside what a person should read.
func TestWriter(t *testing.T) {
	t.Parallel()
	const printed = "remote: Counting objects:  50% (1/2)\rremote: Counting objects: 100% (2/2), done.\nwarning: it is slow\n" +
		"Receiving objects:  10%\rReceiving objects:  20%\rfatal: early EOF\n"
	for size := 1; size <= len(printed); size++ {
		var got bytes.Buffer
		moved := 0
		w := &Writer{To: &got, Moved: func() { moved++ }}
		for i := 0; i < len(printed); i += size {
			if _, err := w.Write([]byte(printed[i:min(i+size, len(printed))])); err != nil {
				t.Fatal(err)
			}
		}
		if got.String() != "warning: it is slow\nfatal: early EOF\n" || moved != (len(printed)+size-1)/size {
			t.Errorf("in pieces of %d bytes: %q, moved %d times", size, &got, moved)
		}
	}
}

// TestWatch ends what stands still, and what takes too long, and nothing else.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, w, stop := New(t.Context(), time.Minute, time.Hour)
		defer stop()
		for range 10 {
			time.Sleep(59 * time.Second)
			w.Moved()
		}
		<-ctx.Done()
		if d, err := time.Since(began), context.Cause(ctx); d != 10*59*time.Second+time.Minute || err.Error() != "no answer within 1m0s" {
			t.Errorf("stood still, ended after %s: %v", d, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, w, stop := New(t.Context(), time.Minute, time.Hour)
		defer stop()
		for ctx.Err() == nil {
			time.Sleep(time.Second)
			w.Moved()
		}
		if err := context.Cause(ctx); err.Error() != "not done within 1h0m0s" {
			t.Error(err)
		}
	})
}
