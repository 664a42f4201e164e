package retry

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestDelayDoublesUpToMax(t *testing.T) {
	t.Parallel()
	b := Backoff{Policy: Policy{Min: time.Second, Max: 5 * time.Second}}
	var got []time.Duration
	for range 5 {
		got = append(got, b.Next())
	}
	if want := []time.Duration{1e9, 2e9, 4e9, 5e9, 5e9}; !slices.Equal(got, want) {
		t.Errorf("delays %v, want %v", got, want)
	}
	if got := b.Failures(); got != 5 {
		t.Errorf("%d failures counted, want 5", got)
	}
	b.Reset()
	if got := b.Next(); got != time.Second {
		t.Errorf("after a reset the delay is %s, want 1s", got)
	}
}

func TestDelayBounds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p       Policy
		earlier int
		from    time.Duration
		to      time.Duration
	}{
		"no jitter":             {Policy{Min: time.Second, Max: time.Minute}, 3, 8 * time.Second, 8 * time.Second},
		"half":                  {Policy{Min: time.Second, Max: time.Minute, Jitter: 0.5}, 2, 2 * time.Second, 4 * time.Second},
		"full":                  {Policy{Min: time.Second, Max: time.Minute, Jitter: 1}, 1, time.Millisecond, 2 * time.Second},
		"full, below the least": {Policy{Min: 10, Max: 10, Jitter: 1}, 0, 10, 10},
		"Min above Max":         {Policy{Min: time.Hour, Max: time.Minute}, 0, time.Minute, time.Minute},
		"no overflow":           {Policy{Min: time.Second, Max: math.MaxInt64}, math.MaxInt, math.MaxInt64, math.MaxInt64},
		"nothing set":           {Policy{}, math.MaxInt, 0, 0},
	} {
		for range 1000 {
			if got := c.p.Delay(c.earlier, nil); got < c.from || got > c.to {
				t.Errorf("%s: delay %s, want %s to %s", name, got, c.from, c.to)
				break
			}
		}
	}
}

// The delays of one source of randomness are the same each time, and use what the
// policy allows.
func TestDelayDeterministic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		p := Policy{
			Min:    time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "min")),
			Max:    time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "max")),
			Jitter: rapid.Float64Range(0, 1).Draw(t, "jitter"),
		}
		a := Backoff{Policy: p, Rand: rand.New(rand.NewPCG(seed, 1))}
		b := Backoff{Policy: p, Rand: rand.New(rand.NewPCG(seed, 1))}
		for n := range 20 {
			x, y := a.Next(), b.Next()
			if x != y {
				t.Fatalf("failure %d: delays %s and %s of one seed", n+1, x, y)
			}
			if x <= 0 || x > p.Max {
				t.Fatalf("failure %d: delay %s, want more than 0 and at most %s", n+1, x, p.Max)
			}
		}
	})
}

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := Sleep(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("slept %s, %v; want 1h", time.Since(began), err)
		}
		if err := Sleep(t.Context(), 0); err != nil || time.Since(began) != time.Hour {
			t.Errorf("a sleep of 0 lasted %s, %v", time.Since(began)-time.Hour, err)
		}
		why := errors.New("no longer wanted")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(why) })
		began = time.Now()
		if err := Sleep(ctx, time.Hour); !errors.Is(err, why) || time.Since(began) != time.Minute {
			t.Errorf("slept %s, %v; want 1m, %v", time.Since(began), err, why)
		}
		if err := Sleep(ctx, 0); !errors.Is(err, why) {
			t.Errorf("a sleep of 0 after the end of the context: %v, want %v", err, why)
		}
	})
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{Policy: Policy{Min: time.Second, Max: time.Minute}}
		began := time.Now()
		for range 3 {
			if err := b.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if got := time.Since(began); got != 7*time.Second {
			t.Errorf("three waits lasted %s, want 7s", got)
		}
		early := make(chan struct{})
		time.AfterFunc(3*time.Second, func() { close(early) })
		began = time.Now()
		if err := b.WaitOr(t.Context(), early); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("waited %s, %v; want 3s", time.Since(began), err)
		}
		began = time.Now()
		if err := b.WaitOr(t.Context(), nil); err != nil || time.Since(began) != 16*time.Second {
			t.Errorf("waited %s, %v; want 16s", time.Since(began), err)
		}
		once := make(chan struct{}, 1)
		once <- struct{}{}
		began = time.Now()
		if woken, err := SleepOr(t.Context(), time.Hour, once); !woken || err != nil || time.Since(began) != 0 {
			t.Errorf("SleepOr waited %s, woken %v, %v; want 0s and woken", time.Since(began), woken, err)
		}
		if woken, err := SleepOr(t.Context(), time.Hour, once); woken || err != nil || time.Since(began) != time.Hour {
			t.Errorf("SleepOr waited %s, woken %v, %v; want 1h and not woken", time.Since(began), woken, err)
		}
	})
}
