package turns

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A line has clients wait for a single turn, which the test has, and notes which client gets it.
type line struct {
	t   *testing.T
	end func(failed bool)
	*Turns

	mu  sync.Mutex // protects got
	got []string
}

func newLine(t *testing.T, waiting int) *line {
	l := &line{t: t, Turns: New(1, waiting, time.Now)}
	l.end = l.Take(Source{User: "test"})
	return l
}

// wait has clients of a source wait, one after the other; then all of them fail, or not.
func (l *line) wait(of Source, clients int, fail bool) {
	for i := range clients {
		go func() {
			end := l.Take(of)
			name := fmt.Sprint(of.Address, of.User, i)
			if end == nil {
				name = "no " + name
			}
			l.mu.Lock()
			l.got = append(l.got, name)
			l.mu.Unlock()
			if end != nil {
				end(fail)
			}
		}()
		synctest.Wait()
	}
}

// want ends the turn of the test, and checks the order of the others.
func (l *line) want(want ...string) {
	l.t.Helper()
	l.end(false)
	synctest.Wait()
	if !slices.Equal(l.got, want) {
		l.t.Errorf("in the order %v, want %v", l.got, want)
	}
	if l.free != 1 || l.waiting != 0 {
		l.t.Errorf("%d turns free, %d waiting", l.free, l.waiting)
	}
	l.got, l.end = nil, l.Take(Source{User: "test"})
}

// TestFewestFailuresFirst has a failing source wait behind any number of others, until that is long ago or it succeeds.
func TestFewestFailuresFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 100)
		guess, plc, other := Source{"a", "plc"}, Source{"b", "plc"}, Source{"a", "hmi"}
		l.wait(guess, 3, true)
		l.wait(plc, 1, false)
		l.wait(other, 1, false)
		l.want("aplc0", "bplc0", "ahmi0", "aplc1", "aplc2")
		l.wait(guess, 2, true)
		l.wait(plc, 2, false)
		l.want("bplc0", "bplc1", "aplc0", "aplc1")
		time.Sleep(forgetAfter + time.Second)
		l.wait(guess, 1, false)
		l.wait(plc, 1, false)
		l.want("bplc0", "aplc0") // b has succeeded before
		if n := len(l.sources); n != 0 {
			t.Errorf("%d sources are remembered that say nothing", n)
		}
	})
}

// TestRoom refuses, where too many wait, the last of the source that has failed, else of the longest.
func TestRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		l.wait(Source{"a", ""}, 3, false)
		l.wait(Source{"b", ""}, 1, true)
		l.want("no a2", "a0", "a1", "b0") // a has succeeded then
		l.wait(Source{"b", ""}, 1, true)
		l.wait(Source{"a", ""}, 3, false)
		l.want("no b0", "a0", "a1", "a2")
		l.wait(Source{"c", ""}, 4, false)
		l.want("no c3", "c0", "c1", "c2")
	})
}

// TestSuccessBefore has a source that has succeeded before go before any number of strangers, in order and where there is no room, until
// it fails: then it comes behind them.
func TestSuccessBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 3)
		known, noted := Source{"known", ""}, Source{"noted", ""}
		l.wait(known, 1, false)
		l.want("known0")
		l.Succeeded(noted)
		for i := range 3 {
			l.wait(Source{fmt.Sprint("s", i, "."), ""}, 1, true)
		}
		l.wait(known, 1, false)
		l.wait(noted, 1, false)
		l.want("no s2.0", "no s1.0", "known0", "noted0", "s0.0")
		l.wait(known, 1, true)
		l.want("known0")
		for i := range 3 {
			l.wait(Source{fmt.Sprint("t", i, "."), ""}, 1, false)
		}
		l.wait(known, 1, false)
		l.want("no known0", "t0.0", "t1.0", "t2.0")
	})
}

// TestSourcesAreBounded forgets the source that has failed least recently, and apart from that the one that has succeeded so.
func TestSourcesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := New(1, 1, time.Now)
		for i := range mostSources + 10 {
			turns.Take(Source{fmt.Sprint(i), ""})(true)
			time.Sleep(time.Millisecond)
		}
		if n := len(turns.sources); n != mostSources {
			t.Errorf("%d sources are remembered, want %d", n, mostSources)
		}
		if turns.sources[Source{"9", ""}] != nil || turns.sources[Source{"10", ""}] == nil {
			t.Error("others than the first are forgotten")
		}
		for i := range mostSources + 10 {
			turns.Succeeded(Source{fmt.Sprint(i), ""})
			time.Sleep(time.Millisecond)
		}
		_, first := turns.right[Source{"9", ""}]
		_, next := turns.right[Source{"10", ""}]
		if n := len(turns.right); n != mostSources || first || !next {
			t.Errorf("%d sources are remembered that have succeeded, want the last %d", n, mostSources)
		}
	})
}

// TestFailuresRest has many sources fail without end, each attempt of which takes 50 ms: they have a tenth of one processor among them, and one
// that has not failed waits for no rest.
func TestFailuresRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := New(2, 64, time.Now)
		const takes = 50 * time.Millisecond
		var worked time.Duration
		var mu sync.Mutex
		stop, guessers := make(chan struct{}), sync.WaitGroup{}
		for i := range 20 {
			guessers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if end := turns.Take(Source{Address: fmt.Sprint(i)}); end != nil {
						time.Sleep(takes)
						mu.Lock()
						worked += takes
						mu.Unlock()
						end(true)
					}
				}
			})
		}
		time.Sleep(10 * time.Second) // each has failed
		mu.Lock()
		before, began := worked, time.Now()
		mu.Unlock()
		for n := range 100 {
			time.Sleep(time.Second)
			asked := time.Now()
			end := turns.Take(Source{User: fmt.Sprint("honest ", n)})
			if waited := time.Since(asked); waited > takes {
				t.Errorf("one that has not failed waited %s", waited)
			}
			time.Sleep(takes)
			end(false)
		}
		mu.Lock()
		if share := float64(worked-before) / float64(time.Since(began)); share > 0.105 || share < 0.08 {
			t.Errorf("what fails takes %.3f of a processor, want a tenth", share)
		}
		mu.Unlock()
		close(stop)
		guessers.Wait()
	})
}
