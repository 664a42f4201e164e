// Package catalog imports application packages: it finds them in a directory, a git
// repository or an OCI registry, checks them against the rules of Margo and of
// Colony, and stores them, each version once and for ever.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/compiler/packagecheck"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// A Store keeps application versions.
type Store interface {
	// AppVersion returns one version, or an error of kind NotFound.
	AppVersion(ctx context.Context, app, version string) (fleet.AppVersion, error)
	// SaveAppVersion stores a version and reports whether it is new. The same digest
	// again changes nothing; another one is an error of kind Conflict.
	SaveAppVersion(ctx context.Context, v fleet.AppVersion) (created bool, err error)
}

// A Registry reads from OCI registries. References begin with oci://.
type Registry interface {
	// Package writes the files of an application package into the empty folder dir, by
	// their paths.
	Package(ctx context.Context, ref, dir string) (protocol.Digest, error)
	// Tags lists the tags of the repository of a reference.
	Tags(ctx context.Context, ref string) ([]string, error)
	// Archive returns the Compose archive of a component. Where the revision is pinned to
	// another one, the error is of kind Conflict.
	Archive(ctx context.Context, repository, revision string) ([]byte, protocol.Digest, error)
	// Pin makes an archive the only one of its revision. Where there is another one
	// already, the error is of kind Conflict.
	Pin(ctx context.Context, repository, revision string, digest protocol.Digest) error
	// Image returns the reference of an image with its digest, or an error of kind NotFound.
	Image(ctx context.Context, ref string) (string, error)
}

// Options are what a Catalog works with. All but Logger and TempDir are needed.
type Options struct {
	Store    Store
	Registry Registry
	// Sources say where packages may come from. Default: nowhere.
	Sources Sources
	// Export writes the files of a commit of a git remote, or of a repository's path,
	// into the empty directory dir and returns the commit. ref may be "". It uses no
	// key and no credentials but those of remote.
	Export func(ctx context.Context, remote Remote, ref, dir string) (commit string, err error)
	// CheckArchive says what is wrong with the Compose archive of a component, and what
	// is to be warned of. Variables are those that parameters may set.
	CheckArchive func(component string, tgz []byte, variables []v1rc3.Variable) (c protocol.Component, warnings []string, err error)
	// Images returns the images of an archive that CheckArchive read, as far as they are known.
	// Nil: none is looked at.
	Images func(component string, tgz []byte, variables []v1rc3.Variable) []packagecheck.Image
	// Host is the CO's own registry, as references name it. Empty: it has none.
	Host string
	// CheckShared says what two components of a profile claim both. Nil: nothing.
	CheckShared func(profile []protocol.Component) error
	// TempDir is where sources are unpacked. Default: the system's.
	TempDir string
	// ArchiveTimeout bounds the fetch of one component's archive. Default 15 s.
	ArchiveTimeout time.Duration
	// Timeout bounds one import. Default 5 min.
	Timeout time.Duration
	Logger  *slog.Logger
}

// A Catalog imports packages. It may be used concurrently.
type Catalog struct {
	opts Options
	// turns bounds how many imports run at once.
	turns chan struct{}
}

// maxImports is how many imports run at once; further ones wait.
const maxImports = 2

// New returns a Catalog.
func New(o Options) (*Catalog, error) {
	if o.Store == nil || o.Registry == nil || o.Export == nil || o.CheckArchive == nil {
		return nil, errors.New("catalog: Store, Registry, Export and CheckArchive must be given")
	}
	if o.CheckShared == nil {
		o.CheckShared = func([]protocol.Component) error { return nil }
	}
	if o.ArchiveTimeout <= 0 {
		o.ArchiveTimeout = 15 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Minute
	}
	if err := o.Sources.Check(); err != nil {
		return nil, fmt.Errorf("catalog: sources of imports: %w", err)
	}
	return &Catalog{opts: o, turns: make(chan struct{}, maxImports)}, nil
}

// An Outcome is what became of a package.
type Outcome string

// The outcomes.
const (
	Imported  Outcome = "imported"  // it is new in the catalog
	Unchanged Outcome = "unchanged" // the same bytes were there
	Refused   Outcome = "refused"   // Problems say why
	Skipped   Outcome = "skipped"   // a tag that is not the version of its package; Warnings say so
)

// A Result is what became of one package of a source.
type Result struct {
	// Path is the folder of the package in the source, or the OCI tag.
	Path    string          `json:"path"`
	App     string          `json:"app,omitempty"`     // id of the application; empty: its description cannot be read
	Version string          `json:"version,omitempty"` // of the application; empty likewise
	Name    string          `json:"name,omitempty"`
	Digest  protocol.Digest `json:"digest,omitempty" doc:"digest of the margo.yaml"`
	Outcome Outcome         `json:"outcome" enum:"imported,unchanged,refused,skipped"`
	// Kind is the class of a refusal: invalid, conflict, or unavailable.
	Kind     protocol.Kind   `json:"kind,omitempty"`
	Problems []v1rc3.Problem `json:"problems,omitempty"` // why it was refused; empty: it was not
	// Warnings name what could not be checked.
	Warnings []string `json:"warnings,omitempty"`
}

func (r *Result) refuse(kind protocol.Kind, problems ...v1rc3.Problem) {
	r.Outcome, r.Kind = Refused, kind
	r.Problems = append(r.Problems, problems...)
}

func (r *Result) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// Import brings all packages of a source into the catalog: every folder with a
// margo.yaml. The source is
//
//   - the absolute path of a directory, or of one description file, whose resources are
//     then not checked;
//   - a git repository: a URL, user@host:path, or a bare repository's path, each with
//     an optional #ref (for the path of a work tree, the ref makes the difference);
//   - oci://host/repository:tag, or without a tag for all tags.
//
// Each must be one that Options.Sources allows. One package that is refused does not
// stop the others: there is one Result for each, in the order of their paths. The error
// speaks of the source as a whole: Denied, Invalid for one that holds no package,
// NotFound, or Unavailable.
func (c *Catalog) Import(ctx context.Context, source string) ([]Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.Timeout,
		protocol.Errorf(protocol.Unavailable, "the import took longer than %s", c.opts.Timeout))
	defer cancel()
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if strings.HasPrefix(source, "oci://") {
		return c.importOCI(ctx, source)
	}
	where, ref, _ := strings.Cut(source, "#")
	if filepath.IsAbs(where) {
		return c.importLocal(ctx, where, ref)
	}
	if !address.IsRemote(where) {
		return nil, protocol.Errorf(protocol.Invalid, "import %s: want an absolute path on the machine of the central orchestrator, the URL of a git repository, or oci://", where)
	}
	remote, err := c.opts.Sources.remote(where)
	if err != nil {
		return nil, err
	}
	return c.importGit(ctx, remote, ref)
}

// importLocal imports what is at a path of this machine.
func (c *Catalog) importLocal(ctx context.Context, where, ref string) ([]Result, error) {
	at, err := c.opts.Sources.local(where)
	if err != nil {
		return nil, err
	}
	defer at.root.Close() //nolint:errcheck // read only
	info, err := at.root.Stat(at.rel)
	switch {
	case err != nil:
		return nil, protocol.Errorf(protocol.Invalid, "import %s: %w", where, cause(err))
	case info.Mode().IsRegular() && ref == "":
		return c.importFile(ctx, at, where)
	case !info.IsDir():
		return nil, protocol.Errorf(protocol.Invalid, "import %s: neither a directory nor a regular file", where)
	case ref != "" || at.isBare():
		if err := at.repository(); err != nil {
			return nil, fmt.Errorf("import %s: %w", where, err)
		}
		return c.importGit(ctx, Remote{URL: at.path}, ref)
	}
	dir, err := at.root.OpenRoot(at.rel)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "import %s: %w", where, cause(err))
	}
	defer dir.Close() //nolint:errcheck // read only
	return c.importDir(ctx, dir, where)
}

func (c *Catalog) importGit(ctx context.Context, remote Remote, ref string) ([]Result, error) {
	dir, remove, err := c.scratch()
	if err != nil {
		return nil, err
	}
	defer remove()
	commit, err := c.opts.Export(ctx, remote, ref, dir)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", redact(remote.URL), err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "import %s: %w", redact(remote.URL), err)
	}
	defer root.Close() //nolint:errcheck // read only
	return c.importDir(ctx, root, redact(remote.URL)+"#"+commit)
}

// redact hides a password in a URL.
func redact(remote string) string {
	if u, err := url.Parse(remote); err == nil && u.User != nil {
		return u.Redacted()
	}
	return remote
}

func (c *Catalog) scratch() (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp(c.opts.TempDir, "colony-import-")
	if err != nil {
		return "", nil, protocol.Errorf(protocol.Unavailable, "make room for an import: %w", err)
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			c.opts.Logger.Warn("import left files behind", "dir", dir, "err", err)
		}
	}, nil
}

// importDir imports the packages below root. source is how they are recorded.
func (c *Catalog) importDir(ctx context.Context, root *os.Root, source string) ([]Result, error) {
	folders, err := findPackages(ctx, root)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "import %s: %w", source, err)
	}
	if len(folders) == 0 {
		return nil, protocol.Errorf(protocol.Invalid, "import %s: no folder holds a %s", source, descriptionFile)
	}
	run := c.newRun(source)
	results := make([]Result, 0, len(folders))
	for _, folder := range folders {
		if ctx.Err() != nil {
			return results, context.Cause(ctx)
		}
		results = append(results, run.folder(ctx, root, folder))
	}
	return results, nil
}

func (c *Catalog) importFile(ctx context.Context, at local, file string) ([]Result, error) {
	doc, err := readLimited(at.root, at.rel)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "import %s: %w", file, cause(err))
	}
	r := Result{Path: filepath.Base(file)}
	r.warn("only the description was given: the package's resources were not checked")
	c.newRun(file).document(ctx, &r, doc, nil)
	return []Result{r}, nil
}

func (c *Catalog) importOCI(ctx context.Context, source string) ([]Result, error) {
	repository, tag, digest := splitOCI(source)
	if err := c.opts.Sources.Registry(hostOf(repository)); err != nil {
		return nil, fmt.Errorf("import %s: %w", source, err)
	}
	tags := []string{tag}
	if tag == "" && digest == "" {
		var err error
		if tags, err = c.opts.Registry.Tags(ctx, source); err != nil {
			return nil, fmt.Errorf("import %s: %w", source, err)
		}
		slices.Sort(tags)
	}
	if len(tags) > maxPackages {
		return nil, protocol.Errorf(protocol.Invalid, "import %s: the repository has more than %d tags: name one", source, maxPackages)
	}
	if len(tags) == 0 {
		return nil, protocol.Errorf(protocol.Invalid, "import %s: the repository has no tag", source)
	}
	var results []Result
	for _, t := range tags {
		ref := source
		if t != "" && digest == "" {
			ref = repository + ":" + t
		}
		r, err := c.importArtifact(ctx, ref, t, len(tags) > 1)
		if err != nil && len(tags) == 1 {
			return nil, fmt.Errorf("import %s: %w", source, err)
		}
		if err != nil {
			r.refuse(protocol.KindOf(err), v1rc3.Problem{Message: err.Error()})
		}
		results = append(results, r)
	}
	return results, nil
}

// splitOCI takes a reference apart. The port of a host is no tag.
func splitOCI(ref string) (repository, tag, digest string) {
	repository, digest, _ = strings.Cut(ref, "@")
	if i := strings.LastIndex(repository, ":"); i > strings.LastIndex(repository, "/") {
		repository, tag = repository[:i], repository[i+1:]
	}
	return repository, tag, digest
}

// importArtifact imports the package that a reference names. Where all tags of a
// repository are imported, one that is not the version of its package, such as
// latest, is skipped.
func (c *Catalog) importArtifact(ctx context.Context, ref, tag string, all bool) (Result, error) {
	r := Result{Path: tag}
	dir, remove, err := c.scratch()
	if err != nil {
		return r, err
	}
	defer remove()
	digest, err := c.opts.Registry.Package(ctx, ref, dir)
	if err != nil {
		return r, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return r, protocol.Errorf(protocol.Unavailable, "read the package: %w", cause(err))
	}
	defer root.Close() //nolint:errcheck // read only
	if r.Path == "" {
		r.Path = string(digest)
	}
	repository, _, _ := splitOCI(ref)
	run := c.newRun(repository + "@" + string(digest))
	run.tag, run.skipOtherTag = tag, all
	run.files(ctx, &r, root)
	return r, nil
}
