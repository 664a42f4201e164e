// Package node is the doctor of a gateway: the checks of an EN. It links no other tier, so
// that the small agent has it too.
package node

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/doctor/host"
)

// manyReports is from when on reports that wait for the LO are worth a warning.
const manyReports = 1000

// Checks returns the checks of an EN. A new one is a function and an entry here.
func Checks(o en.Options) []doctor.Check {
	running := host.Running(o.HTTP, filepath.Join(o.StateDir, "lock"))
	proof := Proof{
		Key: "lo.enrol", Set: len(o.LO.Enrol) > 0, Dir: store.Dir(o.StateDir), Name: identity.OfNode(o.Site, o.Node),
		TokenFile: o.TokenFile(), Token: "colony node token " + string(o.Site), Applies: o.Identity.Root != "", Keys: o.Identity.Key,
	}
	return []doctor.Check{
		{Name: "configuration", Run: Configuration(o.Validate)},
		{Name: "disk", Run: host.Disk(o.StateDir, 0)},
		{Name: "clock", Run: host.Clock(o.StateDir)},
		{Name: "permissions", Run: host.Permissions(o.StateDir, proof.Secrets()...)},
		{Name: "identity", Run: Identity(proof)},
		{Name: "kernel", Run: host.Kernel(true)},
		{Name: "engine", Run: engine(o.Engine)},
		{Name: "plugins", Run: plugins(o.Engine.PluginDirs)},
		{Name: "ports", Run: host.Ports(running, host.Address{Key: "http", Address: o.HTTP})},
		{Name: "lo", Run: host.Broker("the broker of the LO", "lo.mqtt", o.LO.MQTT)},
		{Name: "enrolment", Run: host.Broker("the enrolment at the LO", "lo.enrol", Enrolment(o.LO.Enrol))},
		{Name: "images", Run: proof.HTTP("the image cache of the LO", "engine.mirror", registry(o.Engine.Mirror), identity.OfLO(o.Site))},
		{Name: "backlog", Run: backlog(o.HTTP, running)},
		{Name: "damage", Run: host.Damaged(o.StateDir)},
	}
}

// Load reads the configuration of an EN as the agent does.
func Load(path string) (en.Options, error) {
	o := en.DefaultOptions()
	err := configfile.Load(path, &o)
	o.Logger = slog.New(slog.DiscardHandler)
	return o, err
}

// Main checks the EN of a configuration file and writes the report. Its error says that
// something does not work.
func Main(ctx context.Context, config, version string, asJSON bool, out io.Writer) error {
	o, err := Load(config)
	checks := Checks(o)
	if err != nil {
		checks = []doctor.Check{{Name: "configuration", Run: Unreadable(err)}}
	}
	r := doctor.Run(ctx, "en", version, checks)
	if err := r.Write(out, asJSON); err != nil {
		return err
	}
	return r.Err()
}

// Unreadable is the only check where there is no configuration to check.
func Unreadable(err error) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding {
		return []doctor.Finding{doctor.Failf("name the file with --config; its keys are in docs/configuration.md", "%v", err)}
	}
}

// Configuration checks the options, each fault for itself.
func Configuration(validate func() error) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding {
		err := validate()
		if err == nil {
			return []doctor.Finding{doctor.Okf("every key is valid")}
		}
		var out []doctor.Finding
		for line := range strings.Lines(err.Error()) {
			if line = strings.TrimSpace(line); line != "" {
				out = append(out, doctor.Failf("correct the key; docs/configuration.md lists them", "%s", line))
			}
		}
		return out
	}
}

// engine asks the container engine for its version.
func engine(o engines.Options) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		version, err := engines.Version(ctx, o)
		if err != nil {
			return []doctor.Finding{doctor.Failf("start it (systemctl enable --now containerd), correct engine.address, and run this as root", "the container engine does not answer: %v", err)}
		}
		return []doctor.Finding{judgeEngine(o.Name, version)}
	}
}

func judgeEngine(name, version string) doctor.Finding {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(major)
	m, noMinor := strconv.Atoi(minor)
	if err == nil && (n < 1 || n == 1 && noMinor == nil && m < 6) {
		return doctor.Warnf("use containerd 1.6 or later: earlier ones are not tested", "%s %s", name, version)
	}
	return doctor.Okf("%s %s answers", name, version)
}

// plugins looks for the CNI plugins that a network of containers needs.
func plugins(dirs []string) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding {
		var missing []string
		for _, name := range []string{"bridge", "host-local", "portmap"} {
			found := false
			for _, dir := range dirs {
				_, err := os.Stat(filepath.Join(dir, name))
				found = found || err == nil
			}
			if !found {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return []doctor.Finding{doctor.Failf("install the CNI plugins (package containernetworking-plugins), or correct engine.pluginDirs", "CNI plugins %s are not in %s", strings.Join(missing, ", "), strings.Join(dirs, ", "))}
		}
		return []doctor.Finding{doctor.Okf("the CNI plugins are there")}
	}
}

// registry is the address at which an OCI registry says that it is one.
func registry(base string) string {
	if base == "" {
		return ""
	}
	return strings.TrimSuffix(base, "/") + "/v2/"
}

// backlog asks a running agent how many reports the LO does not have.
func backlog(listener string, running func(context.Context) bool) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		if listener == "" {
			return []doctor.Finding{doctor.Okf("not asked: http is not set in the configuration, so the agent cannot be asked")}
		}
		if !running(ctx) {
			return []doctor.Finding{doctor.Okf("not asked: the agent does not run")}
		}
		b, err := host.Get(ctx, host.URL(listener, "/metrics"))
		if err != nil {
			return []doctor.Finding{doctor.Warnf("look at the log of the agent", "the agent does not say what waits for the LO: %v", err)}
		}
		pending, up := gauge(b, "colony_en_reports_pending"), gauge(b, "colony_en_link_up")
		text := fmt.Sprintf("%.0f reports wait for the LO", pending)
		switch {
		case up == 0:
			return []doctor.Finding{doctor.Warnf("see the check lo, and the log of the agent for why it is refused", "the agent is not connected to the LO; %s", text)}
		case pending > manyReports:
			return []doctor.Finding{doctor.Warnf("look at the log of the LO for why it does not accept them", "%s though the link is up", text)}
		}
		return []doctor.Finding{doctor.Okf("the agent is connected to the LO; %s", text)}
	}
}

// gauge returns the value of a metric without labels; 0 where it is not there.
func gauge(metrics []byte, name string) float64 {
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, _ := strconv.ParseFloat(value, 64) // what is no number counts as 0
			return v
		}
	}
	return 0
}
