// Package limit bounds how many requests a caller may make: one network address, one principal, and one address
// with invalid tokens. It is pure: its callers say what time it is.
package limit

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A Rate is how many requests there may be: so many at once, and then so many in a second.
type Rate struct {
	// PerSecond is how many there may be in a second, for long. 0: any number.
	PerSecond float64 `yaml:"perSecond"`
	// Burst is how many there may be at once, after a while without any.
	Burst int `yaml:"burst"`
}

// Limits are those of the HTTP API. The yaml keys are those of the CO's configuration file. The zero value has none.
type Limits struct {
	// Address is for all requests of one address, Principal for those of one person or program.
	Address   Rate `yaml:"address"`
	Principal Rate `yaml:"principal"`
	// Failures is for tokens of one address that do not count: beyond it those are not looked at that were not known before.
	Failures Rate `yaml:"failures"`
	// Open is how many requests of one person or program may be under way, streams among them. 0: any number.
	Open int `yaml:"open"`
}

// Default are the limits that a configuration changes.
var Default = Limits{Address: Rate{100, 1000}, Principal: Rate{50, 500}, Failures: Rate{0.2, 30}, Open: 500}

// Validate returns all faults of the limits, each with its key in the configuration of the CO.
func (l Limits) Validate() error {
	var errs []error
	for _, each := range []struct {
		key string
		r   Rate
	}{{"address", l.Address}, {"principal", l.Principal}, {"failures", l.Failures}} {
		if each.r.PerSecond < 0 || math.IsNaN(each.r.PerSecond) || math.IsInf(each.r.PerSecond, 0) {
			errs = append(errs, fmt.Errorf("access.limits.%s.perSecond %g: want 0 for none, or more", each.key, each.r.PerSecond))
		}
		if each.r.PerSecond > 0 && each.r.Burst < 1 {
			errs = append(errs, fmt.Errorf("access.limits.%s.burst %d: want 1 or more", each.key, each.r.Burst))
		}
	}
	if l.Open < 0 {
		errs = append(errs, fmt.Errorf("access.limits.open %d: want 0 for none, or more", l.Open))
	}
	return errors.Join(errs...)
}

// most bounds the keys that have a bucket of their own; further ones share one.
const most = 10000

// A Table has a bucket for each key. Its methods may be called concurrently.
type Table struct {
	rate Rate

	mu      sync.Mutex // protects what follows
	buckets map[string]*rate.Limiter
	others  *rate.Limiter // of the keys without one
}

// NewTable returns a table whose buckets are full.
func NewTable(r Rate) *Table {
	t := &Table{rate: r, buckets: map[string]*rate.Limiter{}}
	t.others = t.bucket()
	return t
}

func (t *Table) bucket() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(t.rate.PerSecond), t.rate.Burst)
}

// of returns the bucket of a key. The caller holds the lock.
func (t *Table) of(key string, now time.Time) *rate.Limiter {
	if b, ok := t.buckets[key]; ok {
		return b
	}
	if len(t.buckets) >= most {
		for each, b := range t.buckets {
			if b.TokensAt(now) >= float64(t.rate.Burst) { // as a new one
				delete(t.buckets, each)
			}
		}
	}
	if len(t.buckets) >= most {
		return t.others
	}
	b := t.bucket()
	t.buckets[key] = b
	return b
}

// Take takes one request of a key at a time. It returns 0 where there may be one, and otherwise how long from then on there is none.
func (t *Table) Take(key string, now time.Time) (wait time.Duration) {
	if t.rate.PerSecond <= 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.of(key, now).ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// Wait is Take without taking any.
func (t *Table) Wait(key string, now time.Time) time.Duration {
	if t.rate.PerSecond <= 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b, ok := t.buckets[key]
	if !ok {
		if len(t.buckets) < most {
			return 0
		}
		b = t.others
	}
	missing := 1 - b.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing / t.rate.PerSecond * float64(time.Second))
}

// Places bound how many requests of one key are under way. Its methods may be called concurrently.
type Places struct {
	most int

	mu   sync.Mutex // protects what follows
	open map[string]int
}

// NewPlaces returns places for so many requests of each key; for any number where most is 0.
func NewPlaces(most int) *Places { return &Places{most: most, open: map[string]int{}} }

// Enter takes a place of a key, for Leave to give back, or reports false where there is none.
func (p *Places) Enter(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.most > 0 && p.open[key] >= p.most {
		return false
	}
	p.open[key]++
	return true
}

// Leave gives a place back.
func (p *Places) Leave(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[key]--; p.open[key] == 0 {
		delete(p.open, key)
	}
}
