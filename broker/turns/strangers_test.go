package turns

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	cost  = 10
	takes = 64 * time.Millisecond // what costs that
)

// The work is done once where nothing is known of it, and then once for what is known to be of now: more strangers do not take more of a processor.
func TestStrangersDoNoWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, worked, n := NewStrangers(200, 10, time.Now), 0, 0
		ask := func() {
			var all sync.WaitGroup
			for range 100 {
				n++
				name := fmt.Sprint("made up ", n)
				all.Go(func() {
					begun := time.Now()
					if !s.Wait(Source{"guess", name}, cost, func() { worked++; time.Sleep(takes) }) {
						t.Error("one of a hundred is refused at once")
					}
					if took := time.Since(begun); took != takes {
						t.Errorf("it took %s, want %s", took, takes)
					}
				})
			}
			all.Wait()
		}
		for range 10 {
			ask()
		}
		if worked != 1 {
			t.Errorf("the work was done %d times, want once", worked)
		}
		time.Sleep(measureAfter)
		ask()
		if worked != 2 {
			t.Errorf("the work was done %d times, want once more", worked)
		}
		begun := time.Now()
		s.Wait(Source{"guess", "costly"}, cost+2, func() { t.Error("it is measured though it is known") })
		if took := time.Since(begun); took != 4*takes {
			t.Errorf("what costs two more took %s, want %s", took, 4*takes)
		}
		if len(s.sources) != mostSources {
			t.Errorf("%d sources are remembered, want %d", len(s.sources), mostSources)
		}
	})
}

// Strangers wait as long as sources that had to wait for their turn.
func TestStrangersWaitAsOthersDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewStrangers(2, 2, time.Now)
		s.Saw(false, time.Second, takes, cost)
		s.Saw(true, time.Minute, takes, cost)
		for i, want := range []time.Duration{time.Second + takes, time.Minute + takes, takes} {
			if i == 2 {
				time.Sleep(measureAfter) // in which no source waited
				s.Saw(true, 0, takes, cost)
			}
			begun := time.Now()
			s.Wait(Source{"guess", []string{"one", "one", "other"}[i]}, cost, func() { t.Error("it is measured") })
			if took := time.Since(begun); took != want {
				t.Errorf("attempt %d took %s, want %s", i, took, want)
			}
		}
	})
}

// One that asks again and again, also at the same time, takes as long as one that has an account does with Turns.
func TestStrangersRestAsOthersDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		attempts := func(try func()) (took []time.Duration) {
			var mu sync.Mutex
			var all sync.WaitGroup
			one := func() {
				begun := time.Now()
				try()
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(begun))
			}
			for range 4 {
				all.Go(one)
			}
			all.Wait()
			for range 3 {
				one()
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			one()
			time.Sleep(2 * forgetAfter)
			one()
			return took
		}
		turns, s := New(2, 32, time.Now), NewStrangers(32, 32, time.Now)
		s.Wait(Source{"another", "one"}, cost, func() { time.Sleep(takes) })
		known := attempts(func() {
			end := turns.Take(Source{"guess", "known"})
			time.Sleep(takes)
			end(true)
		})
		unknown := attempts(func() { s.Wait(Source{"guess", "unknown"}, cost, func() { time.Sleep(takes) }) })
		if !slices.Equal(known, unknown) {
			t.Errorf("one with an account: %v\nwithout one: %v", known, unknown)
		}
	})
}

// Beyond the bound one is refused at once.
func TestStrangersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewStrangers(3, 2, time.Now)
		s.Saw(false, 0, takes, cost)
		var all sync.WaitGroup
		wait := func(user string) { all.Go(func() { s.Wait(Source{"guess", user}, cost, nil) }); synctest.Wait() }
		wait("one")
		wait("one")
		if s.Wait(Source{"guess", "one"}, cost, nil) {
			t.Error("a third attempt of a source waits")
		}
		wait("other")
		if s.Wait(Source{"guess", "third"}, cost, nil) {
			t.Error("a fourth one waits")
		}
		all.Wait()
		if s.waiting != 0 {
			t.Errorf("%d are counted at the end", s.waiting)
		}
	})
}
