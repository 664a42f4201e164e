package compiler

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

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
		health, err := networkProbe(probe)
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

// ofImage reports whether a check has no test: the image has it.
func ofImage(h *protocol.Health) bool { return h.Command == nil && h.HTTP == "" && h.Port == 0 }

// merge gives the check of an image the times that the file says.
func merge(image, file *protocol.Health) {
	image.IntervalMillis = cmp.Or(file.IntervalMillis, image.IntervalMillis)
	image.TimeoutMillis = cmp.Or(file.TimeoutMillis, image.TimeoutMillis)
	image.StartPeriodMillis = cmp.Or(file.StartPeriodMillis, image.StartPeriodMillis)
	image.StartIntervalMillis = cmp.Or(file.StartIntervalMillis, image.StartIntervalMillis)
	image.Retries = cmp.Or(file.Retries, image.Retries)
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

// probeTimes are the durations of x-colony-health, which mean what they mean in
// healthcheck.
func probeTimes(h *protocol.Health) map[string]*uint64 {
	return map[string]*uint64{
		"interval": &h.IntervalMillis, "timeout": &h.TimeoutMillis,
		"start_period": &h.StartPeriodMillis, "start_interval": &h.StartIntervalMillis,
	}
}

// networkProbe reads {http: /path, port: 8080} or {port: 1883}. Values come as
// text where a parameter filled them in.
func networkProbe(x any) (*protocol.Health, error) {
	fields, ok := x.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("want a mapping such as {http: /health, port: 8080}")
	}
	h := new(protocol.Health)
	times := probeTimes(h)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		text := fmt.Sprint(fields[key])
		switch {
		case key == "http":
			if !strings.HasPrefix(text, "/") || strings.ContainsAny(text, " \r\n") {
				return nil, fmt.Errorf("http %q: want a path such as /health", text)
			}
			h.HTTP = text
		case key == "port":
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("port %q: want 1 to 65535", text)
			}
			h.Port = uint16(n)
		case key == "retries":
			n, err := strconv.ParseUint(text, 10, 32)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("retries %q: want a number of 1 or more", text)
			}
			h.Retries = uint32(n)
		case times[key] != nil:
			d, err := time.ParseDuration(text)
			if err != nil || d < 0 {
				return nil, fmt.Errorf("%s %q: want a duration such as 10s", key, text)
			}
			if d == 0 && key != "start_period" {
				return nil, fmt.Errorf("%s 0: want more, or leave it out for the default", key)
			}
			*times[key] = toMillis(d)
		default:
			return nil, fmt.Errorf("unknown key %q; known: http, port, interval, timeout, retries, start_period, start_interval", key)
		}
	}
	if h.Port == 0 {
		return nil, fmt.Errorf("port is required")
	}
	return h, nil
}
