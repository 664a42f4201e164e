package containerd

import (
	"context"
	"fmt"
	"strconv"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/names"
	"github.com/colonyfleet/colony/en/engine/containerd/runspec"
)

// specOf returns the steps that turn containerd's default OCI spec into that of
// c. The volumes and files that it mounts must exist.
func (e *Engine) specOf(key string, c engine.Container, config ocispec.ImageConfig) ([]oci.SpecOpts, error) {
	around := runspec.Surroundings{
		Hostname: names.Hostname(c), Cgroup: e.cgroup() + "/" + key, ReadOnly: e.readOnly, CDIDirs: e.opts.CDIDirs,
		Volume: func(name string) string { return e.volumes.Dir(c.ID.Deployment, name) },
		File:   func(i int) string { return e.dir(key, "files", strconv.Itoa(i)) },
	}
	owner := key // of the network, and with it of the names there
	if k := e.networkKey(c); k != "" {
		owner, around.NetNS = k, e.net.NetNS(k)
	}
	around.Names = func(name string) string { return e.dir(owner, name) }
	if c.Spec.Init {
		path, err := e.initProgram(c, "init")
		if err != nil {
			return nil, err
		}
		around.Init = path
	}
	return runspec.Options(c, config, around, func(text string) { e.log.Warn(text, "container", c.ID.String()) })
}

// cgroup returns the parent of our containers' control groups. Two engines on
// one machine have two.
func (e *Engine) cgroup() string { return "/" + e.opts.Namespace + "-" + e.net.Mark() }

// stopOf returns the label that says how to stop c: its signal, and its grace
// in milliseconds.
func stopOf(c engine.Container, config ocispec.ImageConfig) string {
	signal, grace := "SIGTERM", c.Spec.StopTimeoutMillis
	if config.StopSignal != "" {
		signal = config.StopSignal
	}
	if c.Spec.StopSignal != "" {
		signal = c.Spec.StopSignal
	}
	if grace == 0 {
		grace = 10_000
	}
	return fmt.Sprintf("%s %d", signal, grace)
}

// imageConfig returns the part of an image that says how to run it.
func imageConfig(ctx context.Context, img client.Image) (ocispec.ImageConfig, error) {
	spec, err := img.Spec(ctx)
	return spec.Config, err
}
