// Package pinning gives the images of containers the digests that their tags have, and the
// checks of images to the containers that have no test of their own.
package pinning

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// A Resolver reads images in registries.
type Resolver interface {
	// Image returns the reference with the digest of the image: host/repo@sha256:….
	Image(ctx context.Context, ref string) (string, error)
	// Health returns the check that an image declares with HEALTHCHECK, nil where it has
	// none. The reference is one that Image returned.
	Health(ctx context.Context, ref string) (*protocol.Health, error)
}

// Pins resolves each reference once, so that two containers with one tag never run two images.
// It may not be used concurrently.
type Pins struct {
	Resolver Resolver
	// HealthKey is the extension with the check of a service from outside, for messages.
	HealthKey string

	known map[string]string
}

var pinned = regexp.MustCompile(`^[^@\s]+@sha256:[0-9a-f]{64}$`)

// Pin pins the images of a component. Position says where an image stands in the file. An error of
// kind NotFound lists all images that their registries do not have; others come from the
// resolver, and may pass.
func (p *Pins) Pin(ctx context.Context, c *protocol.Component, position func(image string) string) error {
	var missing []string
	for n := range c.Containers {
		container := &c.Containers[n]
		image := container.Image
		switch err := p.container(ctx, container); {
		case protocol.KindOf(err) == protocol.NotFound:
			missing = append(missing, position(image)+": "+err.Error())
		case err != nil:
			return err
		}
	}
	if len(missing) > 0 {
		return protocol.Errorf(protocol.NotFound, "compose.yaml:\n%s", strings.Join(slices.Compact(missing), "\n"))
	}
	return nil
}

func (p *Pins) container(ctx context.Context, c *protocol.Container) error {
	ref := c.Image
	if p.known[ref] == "" {
		got, err := p.Resolver.Image(ctx, ref)
		if err != nil {
			return fmt.Errorf("resolve image %s: %w", ref, err)
		}
		if !pinned.MatchString(got) {
			return protocol.Errorf(protocol.Internal, "image %s was resolved to %q, which is not pinned by digest", ref, got)
		}
		if p.known == nil {
			p.known = map[string]string{}
		}
		p.known[ref] = got
	}
	c.Image = p.known[ref]
	if h := c.Health; h != nil && OfImage(h) {
		if err := p.complete(ctx, c); err != nil {
			return fmt.Errorf("services.%s.healthcheck: %w", c.Name, err)
		}
	}
	return nil
}

// complete fills in the health check of a container whose image has it.
func (p *Pins) complete(ctx context.Context, c *protocol.Container) error {
	h, err := p.Resolver.Health(ctx, c.Image)
	if err != nil {
		return fmt.Errorf("read the check of image %s: %w", c.Image, err)
	}
	if h == nil {
		return protocol.Errorf(protocol.Invalid, "its image %s has none: give it a healthcheck, or %s", c.Image, p.HealthKey)
	}
	merge(h, c.Health)
	c.Health = h
	return nil
}

// OfImage reports whether a check has no test: the image has it.
func OfImage(h *protocol.Health) bool { return h.Command == nil && h.HTTP == "" && h.Port == 0 }

// merge gives the check of an image the times that the file says.
func merge(image, file *protocol.Health) {
	image.IntervalMillis = cmp.Or(file.IntervalMillis, image.IntervalMillis)
	image.TimeoutMillis = cmp.Or(file.TimeoutMillis, image.TimeoutMillis)
	image.StartPeriodMillis = cmp.Or(file.StartPeriodMillis, image.StartPeriodMillis)
	image.StartIntervalMillis = cmp.Or(file.StartIntervalMillis, image.StartIntervalMillis)
	image.Retries = cmp.Or(file.Retries, image.Retries)
}
