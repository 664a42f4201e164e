package reconciler

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/lo/nodes"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// untried reports whether the last attempt says nothing of the version, as its images could not be had: it counts for none.
func untried(d *nodes.Deployment) bool { return d.Status.Code == protocol.RegistryUnavailable }

// retry plans the next attempt, and makes it when it is due and the node is online.
func (s *step) retry(e protocol.SiteEntry, d *nodes.Deployment) {
	if d.RetryMillis == 0 {
		base := time.Duration(e.Policy.BackoffMillis) * time.Millisecond
		n := d.Tries
		if untried(d) {
			n = max(n, d.Status.Attempt)
		}
		wait := Backoff(cmp.Or(base, defaultBackoff), n, s.Jitter)
		d.RetryMillis = max(1, time.UnixMilli(d.SinceMillis).Add(wait).UnixMilli())
		s.out.Changed = true
	}
	if m := d.Status; m.RetryMillis != d.RetryMillis { // the CO learns when it is
		s.transition(e.Deployment, protocol.DeploymentStatus{
			State: lifecycle.Failed, Digest: m.Digest, Attempt: m.Attempt, RetryMillis: d.RetryMillis,
			Code: m.Code, Message: m.Message, Components: m.Components, Recovering: m.Recovering, Presumed: m.Presumed,
		})
	}
	if why := s.shut(e.Policy.AnyTime); why != "" && d.FailedFrom != lifecycle.RollingBack && s.works(d) && d.Active() != d.Assigned.Digest {
		s.waitShut(e.Deployment, "the next attempt waits", why)
		return
	}
	if due := time.UnixMilli(d.RetryMillis); s.Now.Before(due) {
		s.runAt(due)
		return
	}
	if !s.r.Online() {
		return
	}
	if untried(d) {
		s.assign(e.Deployment, d, d.Assigned.Digest, d.FailedFrom == lifecycle.RollingBack)
		return
	}
	s.assign(e.Deployment, d, d.Assigned.Digest, false)
	d.Tries++
}

// Backoff returns the wait after the n-th attempt, n from 1. The bound is base, doubled with each
// further attempt up to five minutes; the wait is a random part of it, between a half and the
// whole, so that nodes that failed together do not retry together.
func Backoff(base time.Duration, n uint32, jitter *rand.Rand) time.Duration {
	return retry.Policy{Min: base, Max: maxBackoff, Jitter: 0.5}.Delay(int(n)-1, jitter)
}
