package turns

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// measureAfter is the greatest age of a measurement of the work before a waiting stranger measures it again. measureShare is the
	// pause after that, as a multiple of the time of the work: so measurements take a hundredth of a processor at most.
	measureAfter = 10 * time.Second
	measureShare = 100
	// drawnFrom is how many of the last samples are drawn from, and drawnFor for how long.
	drawnFrom = 16
	drawnFor  = time.Minute
	// longest is what counts of a sample at most: the machine may have slept.
	longest = time.Minute
)

// Strangers wait as long as those whose work fails, without doing the work and without a turn. So a client cannot learn that there is no work to do,
// and takes neither turns nor processor time from others. The time is drawn from the recent times of others, waiting and work together. The methods may
// be called concurrently.
type Strangers struct {
	now      func() time.Time
	most, of int // that may wait, in all and of one source

	mu       sync.Mutex // protects what follows
	waiting  int
	sources  map[Source]*stranger
	work     samples    // for a cost of 0, in units of 2^-costUnit
	waits    [2]samples // of sources that had not failed, and of those that had
	measured chan struct{}
}

// costUnit keeps the digits of the work for a cost of 0: each more of the cost doubles the work.
const costUnit = 31

// A stranger is what is known of a source that has waited.
type stranger struct {
	attempts, waiting int
	first             time.Time // when the first attempt ends
	rested            time.Time // when the next one begins, at the earliest
}

// NewStrangers returns Strangers of which so many wait at a time, and so many of one source. now reads the clock.
func NewStrangers(most, ofSource int, now func() time.Time) *Strangers {
	return &Strangers{now: now, most: most, of: ofSource, sources: make(map[Source]*stranger)}
}

// Saw notes how long one waited for its turn, that had failed before or not, and then worked: as long again for each more of cost.
func (s *Strangers) Saw(failedBefore bool, waited, worked time.Duration, cost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saw(worked, cost)
	s.waits[index(failedBefore)].add(min(waited, longest), s.now())
}

// saw notes how long work took. s.mu is held.
func (s *Strangers) saw(worked time.Duration, cost int) {
	worked = min(worked, longest)
	s.work.add(time.Duration(float64(worked)*float64(uint64(1)<<costUnit)/float64(uint64(1)<<cost)), s.now())
}

func index(failedBefore bool) int {
	if failedBefore {
		return 1
	}
	return 0
}

// Wait waits for as long as the work of a source would take to fail, with its waiting, where it has a cost up to costUnit. It returns false at once where too many wait.
// It does the work where nothing is known of how long that takes, or nothing of now.
func (s *Strangers) Wait(of Source, cost int, work func()) bool {
	s.mu.Lock()
	r := s.source(of)
	if s.waiting >= s.most || r.waiting >= s.of {
		s.mu.Unlock()
		return false
	}
	s.waiting++
	r.waiting++
	begun := s.now()
	at, unit := s.work.last()
	if worked := scaled(unit, cost); s.measured == nil && (unit == 0 || begun.Sub(at) > max(measureAfter, measureShare*worked)) {
		s.measure(cost, work)
	} else if measured := s.measured; unit == 0 && measured != nil {
		s.mu.Unlock()
		<-measured
		s.mu.Lock()
	}
	end := s.end(r, begun, scaled(s.work.draw(s.now(), drawnFor), cost))
	s.mu.Unlock()
	<-time.NewTimer(end.Sub(s.now())).C // the connection may have ended: it counts until it has had its turn, as with Turns
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	r.waiting--
	return true
}

// measure does the work, and notes how long it takes. s.mu is held, but not meanwhile.
func (s *Strangers) measure(cost int, work func()) {
	measured, begun := make(chan struct{}), s.now()
	s.measured = measured
	s.mu.Unlock()
	work()
	s.mu.Lock()
	s.saw(s.now().Sub(begun), cost)
	s.measured = nil
	close(measured)
}

// scaled is how long work of a cost takes.
func scaled(unit time.Duration, cost int) time.Duration {
	return time.Duration(float64(unit) * float64(uint64(1)<<cost) / float64(uint64(1)<<costUnit))
}

// end returns when an attempt of a source ends, which has begun to wait at a time and would work so long: as with Turns, the first ones wait for
// what they meet, and later ones rest. s.mu is held.
func (s *Strangers) end(r *stranger, begun time.Time, worked time.Duration) time.Time {
	atFirst := r.attempts == 0 || r.attempts == 1 && begun.Before(r.first)
	start := begun.Add(s.waits[index(!atFirst)].draw(begun, measureAfter))
	if !atFirst && r.rested.After(start) {
		start = r.rested
	}
	end := start.Add(worked)
	if r.attempts++; r.attempts == 1 {
		r.first = end
	}
	if rested := end.Add(rests * worked); rested.After(r.rested) {
		r.rested = rested
	}
	return end
}

// source returns what is known of a source, and forgets another one where there are too many. s.mu is held.
func (s *Strangers) source(of Source) *stranger {
	r := s.sources[of]
	if r != nil && (r.waiting > 0 || s.now().Sub(r.rested) <= forgetAfter) {
		return r
	}
	r = &stranger{}
	s.sources[of] = r
	if len(s.sources) <= mostSources {
		return r
	}
	var at Source
	var oldest *stranger
	for other, l := range s.sources {
		if l != r && l.waiting == 0 && (oldest == nil || l.rested.Before(oldest.rested)) {
			at, oldest = other, l
		}
	}
	if oldest != nil {
		delete(s.sources, at)
	}
	return r
}

// samples are the last ones of a duration.
type samples struct {
	next, n int
	all     [drawnFrom]sample
}

type sample struct {
	at time.Time
	d  time.Duration
}

func (s *samples) add(d time.Duration, at time.Time) {
	s.all[s.next] = sample{at, d}
	s.next = (s.next + 1) % drawnFrom
	s.n = min(s.n+1, drawnFrom)
}

// last returns the last sample; 0 where there is none.
func (s *samples) last() (at time.Time, d time.Duration) {
	one := s.all[(s.next+drawnFrom-1)%drawnFrom]
	return one.at, one.d
}

// draw returns a random one of the recent samples. Without a recent sample it returns the last one if s are samples of the work, which is measured
// anew, and 0 if they are waits.
func (s *samples) draw(now time.Time, lately time.Duration) time.Duration {
	n := 0
	for n < s.n && now.Sub(s.all[(s.next+drawnFrom-1-n)%drawnFrom].at) <= lately {
		n++
	}
	if n == 0 {
		if lately == drawnFor {
			_, d := s.last()
			return d
		}
		return 0
	}
	return s.all[(s.next+drawnFrom-1-rand.IntN(n))%drawnFrom].d
}
