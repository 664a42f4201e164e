// Package apps holds the commands of colony app, and colony lint: they make packages, judge them, push them to registries, and
// have the CO import, list and remove them.
package apps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/co/lint"
	"github.com/colonyfleet/colony/co/packaging"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/internal/registryauth"
	"github.com/colonyfleet/colony/protocol"
)

// initAnswer is what colony app init answers to a program.
type initAnswer struct {
	Folder     string                `json:"folder"`
	App        string                `json:"app"`
	Version    string                `json:"version"`
	Files      []string              `json:"files"`
	Parameters []packaging.Parameter `json:"parameters"`
	// Findings are what is refused, and as warnings what was not taken over as it is.
	Findings []lint.Finding `json:"findings"`
}

func initialise(env *command.Env) *cobra.Command {
	var from []string
	var o packaging.Options
	cmd := &cobra.Command{
		Use:   "init --from COMPOSE-FILE [FOLDER]",
		Short: "Make a Margo package out of a vendor's Compose file",
		Long: `Make a Margo package out of a vendor's Compose file, in a new folder: margo.yaml
with a profile and a parameter for each variable, the Compose file with all files
that it names by relative paths, what those include, extend and name in their turn,
and .env. Nothing is overwritten, and nothing of the Compose files is changed.

--from given several times, as docker compose -f, or an override file beside a Compose
file with one of the usual names (docker-compose.override.yml), makes a compose.yaml
that includes all of them, each changing those before it.

What Colony cannot run of it, and what is not taken over as it is, is listed with
its line and what to write instead; colony lint FOLDER lists what is left. The
folder is named after the application, unless one is given.

A variable becomes a parameter with the default that .env or ${NAME:-default}
gives it; without one it is empty. With ${NAME:?message}, or where the file does
not compile with the default, a deployment must give a value.`,
		Example: `  colony app init --from node-red/docker-compose.yml
  colony app init --from compose.yaml --from compose.prod.yaml
  colony app init --from compose.yaml --id meter --version 2.1.0 --registry registry.example/plant meter/`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			folder := ""
			if len(args) > 0 {
				folder = args[0]
			}
			return runInit(env, from, folder, o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&from, "from", nil, "the Compose file; files that it names are looked for beside it; given again, a file that changes those before it")
	f.StringVar(&o.ID, "id", "", "id of the application (default: the name in the Compose file, or of its folder)")
	f.StringVar(&o.Name, "name", "", "name that people read (default: the id)")
	f.StringVar(&o.Version, "version", "1.0.0", "version of the package and its component")
	f.StringVar(&o.Registry, "registry", "registry.colony", "where the component will be pushed: HOST or HOST/PATH; registry.colony is the CO's own")
	f.StringVar(&o.Organization, "organization", "", "the publisher of the package")
	_ = cmd.MarkFlagRequired("from")
	_ = cmd.MarkFlagFilename("from", "yaml", "yml")
	return cmd
}

// checkFrom refuses what is given in the place of a Compose file.
func checkFrom(file string) error {
	if strings.Contains(file, "://") || file == "-" {
		return protocol.Errorf(protocol.Invalid, "--from %s: want a file: the package holds what lies beside it, too; download the vendor's folder", file)
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return protocol.Errorf(protocol.Invalid, "--from %s: it is a folder: want the Compose file in it, such as %s", file, filepath.Join(file, "docker-compose.yml"))
	}
	return nil
}

func runInit(env *command.Env, from []string, folder string, o packaging.Options) error {
	first, err := filepath.Abs(from[0])
	if err != nil {
		return err
	}
	dir := filepath.Dir(first)
	o.Folder = filepath.Base(dir)
	var names []string
	for _, file := range from {
		if err := checkFrom(file); err != nil {
			return err
		}
		abs, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, abs)
		if err != nil || !filepath.IsLocal(name) {
			return protocol.Errorf(protocol.Invalid, "--from %s: want a file below %s, the folder of the first one: the paths in all of them begin there", file, dir)
		}
		names = append(names, filepath.ToSlash(name))
	}
	root, err := os.OpenRoot(dir) // no link leads out of the vendor's folder
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "read the folder of %s: %w", from[0], err)
	}
	defer root.Close() //nolint:errcheck // read only
	p, err := packaging.FromCompose(root.FS(), names, o)
	if err != nil {
		return fmt.Errorf("make a package of %s: %w", strings.Join(from, " and "), err)
	}
	if folder == "" {
		folder = p.ID
	}
	if err := p.Write(folder); err != nil {
		return err
	}
	judged, err := lint.Dir(folder)
	if err != nil {
		return fmt.Errorf("judge the package: %w", err)
	}
	answer := initAnswer{Folder: folder, App: p.ID, Version: p.Version, Parameters: p.Parameters, Findings: findings(p, judged)}
	for name := range p.Files {
		answer.Files = append(answer.Files, name)
	}
	slices.Sort(answer.Files)
	if done, err := env.Machine(answer); done {
		return err
	}
	return showInit(env, answer, p)
}

// findings joins what the lint found and what was not taken over, with the errors first.
func findings(p *packaging.Package, judged lint.Result) []lint.Finding {
	all := judged.Findings
	for _, n := range p.Notes {
		f := lint.Finding{File: "margo.yaml", Message: n.Message, Warning: true}
		if n.Line > 0 {
			f.File, f.Line, f.Message = path.Join(path.Dir(p.Compose()), cmp.Or(n.File, path.Base(p.Compose()))), n.Line, n.Path+": "+n.Message
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b lint.Finding) int {
		rank := map[bool]int{true: 1}
		return cmp.Or(rank[a.Warning]-rank[b.Warning], strings.Compare(a.File, b.File), a.Line-b.Line)
	})
	return all
}

func showInit(env *command.Env, a initAnswer, p *packaging.Package) error {
	fmt.Fprintf(env.Out, "Made the package %s %s of %d files in %s\n", a.App, a.Version, len(a.Files), a.Folder)
	if len(a.Parameters) > 0 {
		var rows [][]string
		for _, q := range a.Parameters {
			value := "(not set)"
			if q.Required {
				value = "(required)"
			} else if q.Default != nil {
				value = *q.Default
			}
			rows = append(rows, []string{q.Name, value, q.Description})
		}
		fmt.Fprintln(env.Out)
		if err := env.Table("PARAMETER DEFAULT DESCRIPTION", rows); err != nil {
			return err
		}
	}
	refused := 0
	for _, f := range a.Findings {
		if !f.Warning {
			refused++
		}
	}
	if len(a.Findings) > 0 {
		fmt.Fprintf(env.Out, "\nNot taken over as it is (%d to change before it can be deployed):\n", refused)
	}
	for _, f := range a.Findings {
		f.File = filepath.Join(a.Folder, f.File)
		fmt.Fprintln(env.Out, f)
	}
	ref := strings.TrimPrefix(p.Repository, "oci://")
	_, err := fmt.Fprintf(env.Out, "\nNext:\n  colony lint %s\n  colony app push %s %s\n  colony app import oci://%s:%s\n", a.Folder, ref, a.Folder, ref, a.Version)
	return err
}

// pushOptions are the flags of push.
type pushOptions struct {
	authFile     string
	plainHTTP    []string
	registryHost string
	replace      bool
}

func push(env *command.Env) *cobra.Command {
	var o pushOptions
	cmd := &cobra.Command{
		Use:   "push REFERENCE [FOLDER]",
		Short: "Push an application package and its components to OCI registries",
		Long: `Push the package in a folder (default: the current one) as an OCI artifact. Its
components that lie in the folder, as components/<name>/compose.yaml, are packed
and pushed before it, each to the repository and revision that margo.yaml names.
The folder is judged as by colony lint first.

REFERENCE is host/repository, with or without oci://; its tag is the version of the
package. registry.colony is the CO's own registry, which is reached at --url.

A version never changes: where a tag names other content, nothing is pushed, unless
--replace-tags is given. A CO that accepted the other one refuses this one.

Credentials are read from --auth-file, or else from REGISTRY_AUTH_FILE, the auth.json
of Podman, or the config.json of Docker. No credential helper is run.`,
		Example: `  colony app push registry.colony/meter meter/
  colony app push --auth-file auth.json registry.example/plant/meter meter/`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			folder := "."
			if len(args) > 1 {
				folder = args[1]
			}
			return runPush(cmd.Context(), env, args[0], folder, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.authFile, "auth-file", "", "file with the credentials of registries, as podman login writes it")
	f.StringSliceVar(&o.plainHTTP, "plain-http", nil, "registries, host or host:port, that are used without TLS, and no others; loopback addresses always are")
	f.StringVar(&o.registryHost, "registry-host", "registry.colony", "name of the CO's own registry (registryHost of its configuration)")
	f.BoolVar(&o.replace, "replace-tags", false, "let tags that name other content name this one")
	return cmd
}

func runPush(ctx context.Context, env *command.Env, ref, folder string, o pushOptions) error {
	// What is pushed can be read by every reader of the registry: no link leads out of the folder.
	root, err := os.OpenRoot(folder)
	if err != nil {
		return protocol.Errorf(protocol.Invalid, "push %s: want a folder with a margo.yaml", folder)
	}
	defer root.Close()
	files := root.FS()
	if _, err := fs.Stat(files, "margo.yaml"); err != nil {
		return protocol.Errorf(protocol.Invalid, "push %s: the folder has no margo.yaml (colony app init makes one)", folder)
	}
	judged, err := lint.Folder(files)
	if err != nil {
		return fmt.Errorf("judge %s: %w", folder, err)
	}
	if judged.Failed() {
		var lines []string
		for _, f := range judged.Findings {
			if f.File = filepath.Join(folder, f.File); !f.Warning {
				lines = append(lines, "  "+f.String())
			}
		}
		return protocol.Errorf(protocol.Invalid, "push %s: nothing was pushed, because a CO would refuse it:\n%s", folder, strings.Join(lines, "\n"))
	}
	client, err := o.client(env)
	if err != nil {
		return err
	}
	defer client.Close()
	pushed, err := packaging.Push(ctx, client, files, strings.TrimSuffix(ref, "/"))
	if done, failed := env.Machine(pushed); done {
		return errors.Join(err, failed)
	}
	var rows [][]string
	for _, p := range pushed {
		digest := string(p.Digest)
		if digest == "" {
			digest = p.Note
		}
		rows = append(rows, []string{p.Kind, p.Name, p.Reference, digest})
	}
	if len(rows) > 0 {
		if err := env.Table("KIND NAME REFERENCE DIGEST", rows); err != nil {
			return err
		}
	}
	return err
}

// client returns a client of registries, of which the CO's own is where its API is.
func (o pushOptions) client(env *command.Env) (*ociclient.Client, error) {
	u, err := url.Parse(env.URL)
	if err != nil || u.Host == "" {
		return nil, protocol.Errorf(protocol.Invalid, "--url %q: want the URL of the CO", env.URL)
	}
	own := u.Host
	if u.Scheme == "https" {
		own = "https://" + own
	}
	path := o.authFile
	if path == "" {
		path = registryauth.Default()
	}
	var auth registryauth.File
	if path != "" {
		if auth, err = registryauth.Read(path); err != nil {
			return nil, protocol.Errorf(protocol.Invalid, "%w", err)
		}
	}
	return ociclient.New(ociclient.Options{
		Hosts: map[string]string{o.registryHost: own}, Insecure: o.plainHTTP, Credentials: auth.Credentials, KeepTags: !o.replace,
		Roots: env.Roots(),
	}), nil
}
