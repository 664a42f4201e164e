// Package images has the routes of the API about the images, archives and packages of the
// CO's own registry.
package images

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/protocol"
)

// Registry is the CO's own registry.
type Registry interface {
	// Entries lists what a repository holds, or all of them where it is "".
	Entries(ctx context.Context, repository string) ([]graph.Entry, error)
	// Find returns what goes with a tag or a digest of a repository.
	Find(repository, ref string) (graph.Removal, error)
	// Remove removes a tag, or a digest with all its tags, unless it is in use.
	Remove(ctx context.Context, repository, ref string) (graph.Removal, error)
}

// Options are what the routes work with. All are needed.
type Options struct {
	Registry Registry
	// Uses returns the users of what a removal takes away.
	Uses func(ctx context.Context, r graph.Removal) ([]fleet.ImageUse, error)
}

// An Image is what the registry holds under one of its names.
type Image struct {
	Repository string          `json:"repository"` // its name in the registry
	Tag        string          `json:"tag,omitempty" doc:"absent: only its digest names it"`
	Digest     protocol.Digest `json:"digest"`
	Kind       string          `json:"kind,omitempty" doc:"the artifactType of its manifest, or else the media type; absent where the manifest cannot be read"`
	Bytes      int64           `json:"bytes" doc:"of all its layers, also of those that it shares"`
	RemovedAt  *time.Time      `json:"removedAt,omitempty" doc:"its names were removed then; it can be pulled by its digest until it is collected, a day later, or for as long as something needs it"`
}

// Images are a page of what the registry holds.
type Images struct {
	Items []Image `json:"items"` // by name
	Next  string  `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// Uses list the users of an image.
type Uses struct {
	Image     string            `json:"image"` // the reference that was asked for
	Tags      []string          `json:"tags" doc:"what would go with it"`
	Manifests []protocol.Digest `json:"manifests" doc:"what would have no name then, and be collected; empty where another tag or an index names it"`
	Uses      []fleet.ImageUse  `json:"uses"`
}

// A Removal says what was removed.
type Removal struct {
	Image     string            `json:"image"` // the reference that was asked for
	Tags      []string          `json:"tags"`  // that were removed with it
	Manifests []protocol.Digest `json:"manifests" doc:"what has no name any more, and is collected a day later"`
}

type routes struct {
	Options
	log *slog.Logger
}

// Register adds the routes to h.
func Register(h huma.API, o Options, log *slog.Logger) {
	r := &routes{o, log}
	huma.Get(h, "/api/v1/images", r.list, form.Describe("apps", "List the images, archives and packages of the CO's registry"))
	huma.Get(h, "/api/v1/images/uses", r.uses, form.Describe("apps", "Show the users of an image of the CO's registry"), conflict)
	huma.Delete(h, "/api/v1/images", r.remove, form.Describe("apps", "Remove an image, archive or package from the CO's registry"), conflict, func(o *huma.Operation) {
		o.DefaultStatus = http.StatusOK
		o.Description = "A tag is removed, or a digest with all its tags. What a deployment is to run, a node has, a file of the deployments repo names, or a version in the " +
			"catalog names is refused. What has no name then can be pulled by its digest for one day more, and is collected after that, unless it is in use then."
	})
}

func conflict(o *huma.Operation) { o.Errors = append(o.Errors, http.StatusConflict) }

type listInput struct {
	Repository string `query:"repository" doc:"only this one"`
	Limit      int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many items"`
	Cursor     string `query:"cursor" doc:"what the page before gave as next"`
}

func (r *routes) list(ctx context.Context, in *listInput) (*form.Reply[Images], error) {
	entries, err := r.Registry.Entries(ctx, in.Repository)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, problem.At("query.repository", err))
	}
	slices.SortFunc(entries, func(a, b graph.Entry) int { return strings.Compare(position(a), position(b)) })
	out := Images{Items: []Image{}}
	for _, e := range entries {
		if in.Cursor != "" && position(e) <= in.Cursor {
			continue
		}
		if len(out.Items) == fleet.Size(in.Limit) {
			last := out.Items[len(out.Items)-1]
			out.Next = position(graph.Entry{Repository: last.Repository, Tag: last.Tag, Digest: last.Digest})
			break
		}
		image := Image{Repository: e.Repository, Tag: e.Tag, Digest: e.Digest, Kind: e.Kind, Bytes: e.Bytes}
		if !e.Removed.IsZero() {
			at := e.Removed.UTC()
			image.RemovedAt = &at
		}
		out.Items = append(out.Items, image)
	}
	return &form.Reply[Images]{Body: out}, nil
}

// position orders entries by repository, and those with a tag before those without.
func position(e graph.Entry) string {
	if e.Tag == "" {
		return e.Repository + " @" + string(e.Digest)
	}
	return e.Repository + " :" + e.Tag
}

type imageInput struct {
	Image string `query:"image" required:"true" doc:"REPOSITORY:TAG or REPOSITORY@DIGEST, without the registry's name"`
}

// parse returns the repository and the tag or digest.
func (in imageInput) parse() (repository, ref string, err error) {
	repository, ref, ok := graph.Split(in.Image)
	if !ok {
		return "", "", problem.At("query.image", protocol.Errorf(protocol.Invalid, "%q: want REPOSITORY:TAG or REPOSITORY@DIGEST, without the name of the registry", in.Image))
	}
	return repository, ref, nil
}

func (r *routes) uses(ctx context.Context, in *imageInput) (*form.Reply[Uses], error) {
	repository, ref, err := in.parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	found, err := r.Registry.Find(repository, ref)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, problem.At("query.image", err))
	}
	uses, err := r.Uses(ctx, found)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	return &form.Reply[Uses]{Body: Uses{in.Image, form.NotNil(found.Tags), form.NotNil(found.Manifests), form.NotNil(uses)}}, nil
}

func (r *routes) remove(ctx context.Context, in *imageInput) (*form.Reply[Removal], error) {
	repository, ref, err := in.parse()
	if err != nil {
		return nil, problem.Answer(ctx, r.log, err)
	}
	removed, err := r.Registry.Remove(ctx, repository, ref)
	if err != nil {
		return nil, problem.Answer(ctx, r.log, problem.At("query.image", err))
	}
	audit.Note(ctx, "removed "+in.Image)
	r.log.InfoContext(ctx, "image removed", "image", in.Image, "tags", removed.Tags)
	return &form.Reply[Removal]{Body: Removal{in.Image, form.NotNil(removed.Tags), form.NotNil(removed.Manifests)}}, nil
}
