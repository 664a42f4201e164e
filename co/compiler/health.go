package compiler

import (
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/co/compiler/servicecheck"
	"github.com/colonyfleet/colony/protocol"
)

// healthKey is the extension for probes over the network, for images without a
// program that could test them from inside.
const healthKey = "x-colony-health"

// health reads healthcheck, or x-colony-health. Nil means: healthy while it runs.
func (t *translation) health(service string, s types.ServiceConfig) *protocol.Health {
	probe, given := s.Extensions[healthKey]
	h := s.HealthCheck
	if given {
		if h != nil {
			t.problem(service, healthKey, "healthcheck is given too: give one of them")
		}
		health, err := servicecheck.Probe(probe)
		if err != nil {
			t.problem(service, healthKey, "%v", err)
		} else if s.NetworkMode == "none" {
			t.problem(service, healthKey, "a container with network_mode none cannot be reached")
		}
		return health
	}
	if !checked(s) {
		return nil
	}
	if reflect.DeepEqual(*h, types.HealthCheckConfig{}) {
		t.warn("services."+service+".healthcheck", "it says nothing: a check in the image is read where another service waits for it, or times are given here")
		return nil
	}
	t.noZeros(service, h)
	health := &protocol.Health{
		IntervalMillis:      t.millis(service, "healthcheck.interval", h.Interval),
		TimeoutMillis:       t.millis(service, "healthcheck.timeout", h.Timeout),
		StartPeriodMillis:   t.millis(service, "healthcheck.start_period", h.StartPeriod),
		StartIntervalMillis: t.millis(service, "healthcheck.start_interval", h.StartInterval),
	}
	if h.Retries != nil {
		health.Retries = uint32(min(*h.Retries, math.MaxUint32))
	}
	switch {
	case len(h.Test) == 0: // that of the image, with these times
	case len(h.Test) > 1 && h.Test[0] == "CMD":
		health.Command = slices.Clone([]string(h.Test[1:]))
	case len(h.Test) == 2 && h.Test[0] == "CMD-SHELL":
		health.Command = []string{"/bin/sh", "-c", h.Test[1]}
	default:
		t.problem(service, "healthcheck.test", "want a text, [CMD, program, …], [CMD-SHELL, line] or [NONE]; without one, that of the image is taken")
	}
	return health
}

// waitedFor has the check of its image read for each service that another one waits for to
// be healthy, and that has none in the file.
func (t *translation) waitedFor(containers map[string]protocol.Container) {
	for _, name := range slices.Sorted(maps.Keys(containers)) {
		for _, d := range containers[name].DependsOn {
			on := containers[d.Container]
			if d.Condition != protocol.ServiceHealthy || on.Health != nil {
				continue
			}
			on.Health = new(protocol.Health)
			containers[d.Container] = on
			t.warn("services."+name+".depends_on."+d.Container, "the check must come from the image of %s: a deployment is refused where that has no HEALTHCHECK", d.Container)
		}
	}
}

// checked reports whether a service has a healthcheck that is not disabled.
func checked(s types.ServiceConfig) bool {
	h := s.HealthCheck
	return h != nil && !h.Disable && (len(h.Test) == 0 || h.Test[0] != "NONE")
}

// noZeros refuses what one implementation of Compose takes for its default and
// another for a mistake.
func (t *translation) noZeros(service string, h *types.HealthCheckConfig) {
	const want = "0: want more, or leave it out for the default"
	times := map[string]*types.Duration{"interval": h.Interval, "timeout": h.Timeout, "start_interval": h.StartInterval}
	for _, key := range slices.Sorted(maps.Keys(times)) {
		if d := times[key]; d != nil && *d == 0 {
			t.problem(service, "healthcheck."+key, want)
		}
	}
	if h.Retries != nil && *h.Retries == 0 {
		t.problem(service, "healthcheck.retries", want)
	}
}
