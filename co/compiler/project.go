package compiler

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/interpolation"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/co/compiler/addresses"
	"github.com/colonyfleet/colony/co/compiler/composearchive"
	"github.com/colonyfleet/colony/co/compiler/composefile"
	"github.com/colonyfleet/colony/co/compiler/diagnosis"
	"github.com/colonyfleet/colony/co/compiler/interpolate"
	"github.com/colonyfleet/colony/co/compiler/mounting"
	"github.com/colonyfleet/colony/co/compiler/topology"
	"github.com/colonyfleet/colony/protocol"
)

// A translation turns one Compose project into containers, and collects what is
// wrong with it.
type translation struct {
	component string
	archive   *composearchive.Archive
	project   *types.Project
	document  *composefile.Document
	variables map[string]string          // by name: those of parameters, and of .env
	open      map[string]bool            // variables whose value a deployment will say; nil in one
	unknown   map[string]bool            // services whose image a deployment will say
	attached  map[string]map[string]bool // the networks of each service, where some are apart
	addresses addresses.Plan
	unsettled bool // a deployment will say which networks a service is on
	problems  []string
	warnings  []string
	paths     map[string]string // the paths of problems, by their texts
	// parameters are the variables that parameters may set, where there is no deployment yet.
	parameters map[string]bool
	folders    map[string]string   // the variables that .env gives a value from PWD or HOME, and which of these
	uses       map[string][]string // the variables of each text of the document, by its path
	optional   []string            // the profiles that services have
	left       map[string][]int    // the items that are left of lists, by their paths
}

func newTranslation(component string, a *composearchive.Archive, variables map[string]string) *translation {
	t := &translation{component: component, archive: a, paths: map[string]string{}}
	var err error
	if t.variables, err = interpolate.Variables(component, a.Files, variables); err != nil {
		t.problems = append(t.problems, err.Error())
	}
	t.folders = interpolate.FromFolders(a.Files, t.variables, variables)
	return t
}

// containers returns the containers of the project in start order. What is wrong is reported
// together, as far as what is left can be judged.
func (t *translation) containers(ctx context.Context) ([]protocol.Container, error) {
	var err error
	if t.document, err = composefile.Read(t.archive.Files, composeFile, t.variables); err != nil {
		t.problems = append(t.problems, err.Error())
		return nil, t.err()
	}
	t.problems, t.warnings = append(t.problems, t.document.Problems...), append(t.warnings, t.document.Notes...)
	maps.Copy(t.variables, t.document.Variables)
	document := t.document.Values
	t.uses, t.optional = composefile.Uses(document), composefile.Profiles(document)
	t.resolve("", document)
	if t.open != nil {
		t.prune(document)
	}
	t.absent(document)
	if len(document) == 0 && len(t.problems) > 0 { // every key was refused
		return nil, t.err()
	}
	if !t.load(ctx, document) {
		return nil, t.err()
	}
	volumes := t.mounting().CheckShort(document)
	if len(t.project.Services) == 0 {
		t.problemAt("services", "no service runs: want one at least that has no profile, or whose profile is chosen by default")
	}
	t.mounting().CheckTargets(volumes)
	t.checkPorts(document)
	t.checkNetworks()
	t.checkVolumes()
	t.mounting().CheckBinds()
	containers, replicas := map[string]protocol.Container{}, map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(t.project.Services)) {
		containers[name] = t.container(name, t.project.Services[name])
		replicas[name] = t.replicas(name, t.project.Services[name])
	}
	if err := t.err(); err != nil {
		return nil, err
	}
	t.waitedFor(containers)
	if err := topology.Replicate(containers, replicas); err != nil {
		t.problemAt("services", "%v", err)
	}
	ordered := t.order(containers)
	if err := t.err(); err != nil {
		return nil, err
	}
	return ordered, nil
}

// absent takes out what names services that do not run. Where a deployment will choose the
// profiles, it will show which do.
func (t *translation) absent(document map[string]any) {
	fill := func(text string) string {
		filled, err := interpolate.Text(text, t.lookup)
		if err != nil {
			return text // resolve has said what is wrong
		}
		return filled
	}
	for _, a := range diagnosis.Absent(document, t.profiles(), fill) {
		switch {
		case a.Required && !t.open[profilesVariable]:
			t.problemAt(a.At, "%s", a)
		case len(a.Profiles) == 0:
			t.warn(a.At, "%s", a)
		}
	}
}

// mounting translates what services of the project mount, as far as that is loaded.
func (t *translation) mounting() *mounting.Translation {
	return &mounting.Translation{
		Component: t.component, Archive: t.archive, Project: t.project, Extended: t.document.Extended,
		Problem: t.problem, Warn: t.warn, Lookup: t.lookup,
	}
}

// problem notes a problem of a service's key.
func (t *translation) problem(service, key, format string, args ...any) {
	t.problemAt("services."+service+"."+key, format, args...)
}

// problemAt notes a problem of a place in compose.yaml.
func (t *translation) problemAt(at, format string, args ...any) {
	message := t.plain(fmt.Sprintf(format, args...))
	where := at
	if at != "" {
		path, line := t.located(at, message)
		at, where = path, cmp.Or(line, "line 1: ")+path+": " // without one, it is of the file as a whole
	}
	t.problems, t.paths[where+message] = append(t.problems, where+message), at
}

// located returns the path of what a message is about, and "line N: " for it, "" where it has none.
func (t *translation) located(at, message string) (path, line string) {
	if t.document == nil {
		return at, ""
	}
	return t.document.Place(at, message, t.left)
}

// plain returns a message with the variables of included files under the names that they have
// there.
func (t *translation) plain(message string) string {
	for _, unique := range slices.Backward(slices.Sorted(maps.Keys(t.document.Names))) { // one that begins like another one comes before it
		message = strings.ReplaceAll(message, unique, t.document.Names[unique])
	}
	return message
}

func (t *translation) err() error { return refused(t.component, t.problems) }

// refused is the error of a component with problems, nil where there are none.
func refused(component string, problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return protocol.Errorf(protocol.Invalid, "component %s: %s:\n%s", component, composeFile, strings.Join(byLine(problems), "\n"))
}

var placed = regexp.MustCompile(`^(\S+: )?line (\d+): `)

// byLine returns the lines of problems, each once, in the order in which they stand in the files.
func byLine(problems []string) []string {
	if len(problems) == 0 {
		return nil
	}
	all := strings.Split(strings.Join(problems, "\n"), "\n")
	where := func(text string) (string, int) {
		m := placed.FindStringSubmatch(text)
		if m == nil {
			return "", math.MaxInt
		}
		n, err := strconv.Atoi(m[2])
		if err != nil {
			n = math.MaxInt
		}
		return m[1], n
	}
	slices.SortFunc(all, func(a, b string) int {
		fileA, a1 := where(a)
		fileB, b1 := where(b)
		return cmp.Or(cmp.Compare(fileA, fileB), cmp.Compare(a1, b1), cmp.Compare(a, b))
	})
	return slices.Compact(all)
}

// load has the Compose loader make a project of the document, without what it refuses. It
// returns false where nothing is left to judge.
func (t *translation) load(ctx context.Context, document map[string]any) bool {
	try := func(document map[string]any) (err error) {
		t.project, err = load(ctx, t.component, document, t.variables, t.profiles())
		return err
	}
	if try(document) == nil {
		return true
	}
	// What is wrong with a text, resolve has said.
	filled, err := interpolation.Interpolate(document, interpolation.Options{LookupValue: t.lookup, Substitute: interpolate.Text})
	if err != nil {
		filled = document
	}
	findings, left, whole := diagnosis.Find(document, filled, try)
	for _, f := range findings {
		t.problemAt(f.At, "%s", f.Message)
	}
	t.left = left
	if !whole && len(t.problems) == 0 {
		t.problemAt("", "%v", try(document))
	}
	return whole
}

// load gives the document to the Compose loader, which interpolates, validates
// and normalises it. The loader reads no file: what the document includes and extends is
// in it, and env_file is read from the archive by us.
func load(ctx context.Context, component string, document map[string]any, variables map[string]string, profiles []string) (project *types.Project, err error) {
	// The loader is not ours and its input comes from packages: a fault in it must
	// cost one deployment, and not the CO.
	defer func() {
		if fault := recover(); fault != nil {
			project, err = nil, fmt.Errorf("the Compose loader failed on this file: %v", fault)
		}
	}()
	details := types.ConfigDetails{
		// A directory that is not there: nothing may be read from this machine.
		WorkingDir:  "/nonexistent",
		ConfigFiles: []types.ConfigFile{{Filename: composeFile, Config: document}},
		Environment: maps.Clone(variables), // of what a service passes on
	}
	maps.DeleteFunc(details.Environment, interpolate.IsFolder)
	return loader.LoadWithContext(ctx, details, func(o *loader.Options) {
		o.SetProjectName(component, true)
		o.ResolvePaths = false
		o.Profiles = profiles
		o.SkipInclude = true
		o.SkipResolveEnvironment = true
		o.SkipResolveLabels = true
		o.Interpolate.Substitute, o.Interpolate.LookupValue = interpolate.Text, interpolation.LookupValue(interpolate.In(variables))
	})
}

// profilesVariable chooses the profiles whose services run, as it does for Compose.
const profilesVariable = "COMPOSE_PROFILES"

// profiles returns the profiles that are chosen; at an import, where a deployment will
// choose, none.
func (t *translation) profiles() (chosen []string) {
	if t.open[profilesVariable] {
		return nil
	}
	for name := range strings.SplitSeq(t.variables[profilesVariable], ",") {
		if name = strings.TrimSpace(name); name != "" {
			chosen = append(chosen, name)
		}
	}
	return chosen
}

// order returns the containers so that each comes after those it depends on; of
// those that are free, the first by name comes first.
func (t *translation) order(containers map[string]protocol.Container) []protocol.Container {
	var ordered []protocol.Container
	done := map[string]bool{}
	for len(ordered) < len(containers) {
		next := ""
		for _, name := range slices.Sorted(maps.Keys(containers)) {
			waits := slices.ContainsFunc(containers[name].DependsOn, func(d protocol.Dependency) bool { return !done[d.Container] })
			if !done[name] && !waits {
				next = name
				break
			}
		}
		if next == "" {
			var stuck []string
			for _, name := range slices.Sorted(maps.Keys(containers)) {
				if !done[name] {
					stuck = append(stuck, name)
				}
			}
			t.problems = append(t.problems, "depends_on: the services "+strings.Join(stuck, ", ")+" wait for each other in a cycle")
			return nil
		}
		done[next] = true
		ordered = append(ordered, containers[next])
	}
	return ordered
}
