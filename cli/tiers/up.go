package tiers

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/up"
)

// Up returns "colony up".
func Up(env *command.Env, version string) *cobra.Command {
	o := up.DefaultOptions()
	var detach bool
	var labels, parameters []string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run CO, LO and EN on this machine until Ctrl-C",
		Long: `Run a whole fleet on this machine: CO, LO and EN as processes of their own under
one supervisor, with a private PostgreSQL and a private containerd that touch
nothing else on the machine. With --samples the sample applications are imported
and one is deployed. Everything is kept in the state directory: the next start
uses it again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			o.Version, o.Out = version, env.Out
			for _, path := range []*string{&o.StateDir, &o.Samples, &o.SampleBinaries} {
				if *path != "" {
					if *path, err = filepath.Abs(*path); err != nil {
						return err
					}
				}
			}
			if o.Labels, err = keyValues("--label", labels); err != nil {
				return err
			}
			set, err := keyValues("--sample-parameter", parameters)
			if err != nil {
				return err
			}
			o.SampleParameters = map[string]any{}
			for k, v := range set {
				o.SampleParameters[k] = command.ParameterValue(v)
			}
			if err := o.Validate(); err != nil {
				return command.Usage(err)
			}
			if detach {
				return up.Detach(cmd.Context(), o)
			}
			return up.Run(cmd.Context(), o)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&o.StateDir, "state-dir", o.StateDir, "where everything is kept")
	fl.StringVar(&o.Site, "site", o.Site, "name of the site")
	fl.StringVar(&o.Node, "node", o.Node, "name of the node")
	fl.StringSliceVar(&labels, "label", []string{"role=gateway"}, "labels of the node, as key=value")
	fl.StringVar(&o.HTTPAddr, "http", o.HTTPAddr, "address of the API, the OCI registry and the metrics")
	fl.StringVar(&o.COMQTTAddr, "co-mqtt", o.COMQTTAddr, "plain address of the CO's broker, for applications")
	fl.StringVar(&o.LOMQTTAddr, "lo-mqtt", o.LOMQTTAddr, "plain address of the LO's broker, for devices and workloads")
	fl.StringVar(&o.COTLSAddr, "co-mqtt-tls", o.COTLSAddr, "address of the CO's broker where LOs connect with their certificates")
	fl.StringVar(&o.LOTLSAddr, "lo-mqtt-tls", o.LOTLSAddr, "address of the LO's broker where nodes connect with their certificates")
	fl.StringVar(&o.COEnrolAddr, "co-enrol", o.COEnrolAddr, "address where LOs get their certificates")
	fl.StringVar(&o.LOEnrolAddr, "lo-enrol", o.LOEnrolAddr, "address where nodes get their certificates")
	fl.StringVar(&o.COHTTPSAddr, "co-https", o.COHTTPSAddr, "address where LOs fetch specifications and images with their certificates")
	fl.StringVar(&o.LOHTTPSAddr, "lo-https", o.LOHTTPSAddr, "address where nodes fetch images with their certificates")
	fl.StringVar(&o.LOHTTPAddr, "lo-http", o.LOHTTPAddr, "address of the LO's metrics and status")
	fl.StringVar(&o.DatabaseURL, "database-url", "", "use this PostgreSQL instead of a private one")
	fl.StringVar(&o.Containerd, "containerd", "", "use the containerd at this socket instead of a private one")
	fl.StringVar(&o.GitRemote, "git-remote", "", "use this deployments repo instead of one in the state directory")
	fl.StringSliceVar(&o.ImportRoots, "import-root", nil, "directory below which app import may read, besides the samples; may be repeated")
	fl.StringSliceVar(&o.ImportRegistries, "import-registry", nil, "registry whose packages and images may be imported besides the CO's own, as docker.io; may be repeated")
	fl.StringVar(&o.Samples, "samples", "", "folder of the sample applications (examples)")
	fl.StringVar(&o.SampleBinaries, "sample-binaries", "", "folder of the sample programs, as make build leaves them")
	fl.StringArrayVar(&parameters, "sample-parameter", nil, "set a parameter of the sample that is deployed, as name=value")
	fl.StringVar(&o.LogLevel, "log-level", o.LogLevel, "debug, info, warn or error")
	fl.BoolVar(&detach, "detach", false, "return once the fleet is up; colony down stops it")
	return cmd
}

// keyValues reads flags of the form key=value.
func keyValues(flag string, list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, command.Usage(fmt.Errorf("%s %q: want key=value", flag, kv))
		}
		out[k] = v
	}
	return out, nil
}

// Down returns "colony down".
func Down(env *command.Env) *cobra.Command {
	dir := up.DefaultOptions().StateDir
	timeout := 3 * time.Minute
	cmd := &cobra.Command{
		Use: "down", Short: "Stop the fleet that colony up --detach started", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			abs, err := filepath.Abs(dir)
			if err != nil {
				return err
			}
			was, err := up.Down(abs, timeout)
			if err != nil {
				return err
			}
			if !was {
				fmt.Fprintf(env.Out, "nothing runs in %s\n", abs)
				return nil
			}
			fmt.Fprintf(env.Out, "stopped; the state is kept in %s\n", abs)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "state-dir", dir, "the state directory that colony up was given")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	return cmd
}
