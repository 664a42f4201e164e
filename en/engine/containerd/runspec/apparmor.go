package runspec

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// loadedProfiles is where the kernel lists its AppArmor profiles.
const loadedProfiles = "/sys/kernel/security/apparmor/profiles"

// checkAppArmor refuses a profile that the node has not loaded and that is not to be loaded:
// runc would say no more than that a write failed.
func checkAppArmor(c engine.Container) error {
	loaded, err := isLoaded(c)
	if err != nil || loaded || c.Spec.AppArmorProfile != "" {
		return err
	}
	return engine.Errorf(protocol.Incompatible, "container %s is to run under the AppArmor profile %s, which the node has not loaded: load it with apparmor_parser", c.ID, c.Spec.AppArmor)
}

// isLoaded reports whether the kernel has the profile of a container.
func isLoaded(c engine.Container) (bool, error) {
	b, err := os.ReadFile(loadedProfiles)
	if err != nil {
		return false, engine.Errorf(protocol.Incompatible, "container %s is to run under the AppArmor profile %s, and the node's kernel has no AppArmor: place it on another node, or drop the profile", c.ID, c.Spec.AppArmor)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, c.Spec.AppArmor+" (") {
			return true, nil
		}
	}
	return false, nil
}

// LoadAppArmor loads the profile that a container brings along, where the kernel does not have
// it. A profile stays until the node is booted anew. Errors say what the node lacks
// (protocol.Incompatible), or what is wrong with the profile (protocol.CreateFailed).
func LoadAppArmor(ctx context.Context, c engine.Container) error {
	if c.Spec.AppArmorProfile == "" || c.Spec.Privileged {
		return nil
	}
	if loaded, err := isLoaded(c); err != nil || loaded {
		return err
	}
	cmd := exec.CommandContext(ctx, "apparmor_parser", "--replace", "--skip-cache")
	cmd.Stdin = strings.NewReader(c.Spec.AppArmorProfile)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return engine.Errorf(protocol.Incompatible, "container %s brings an AppArmor profile, and the node has no apparmor_parser to load it: install the package apparmor", c.ID)
	}
	if err != nil {
		return engine.Errorf(protocol.CreateFailed, "container %s: the node cannot load its AppArmor profile: %w: %s", c.ID, err, strings.TrimSpace(string(out)))
	}
	return nil
}
