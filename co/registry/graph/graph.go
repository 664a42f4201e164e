// Package graph says what a repository of a registry holds by name, and what goes with a
// name that is removed: the manifests that its tags and indexes name.
package graph

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/protocol"
)

// A Repository is what one repository has.
type Repository struct {
	Name      string
	Tags      map[string]protocol.Digest
	Manifests map[protocol.Digest]*artifact.Manifest
}

// A Removal is what goes with a name.
type Removal struct {
	Repository string
	Tags       []string // sorted
	// Manifests are those that no tag and no index names then: an image, and what it is an
	// index of.
	Manifests []protocol.Digest
}

// Removal returns what goes with a tag, or with a digest and all its tags. The error of what
// is not there is of kind NotFound, that of a digest which an index names of kind Conflict.
func (r *Repository) Removal(ref string) (Removal, error) {
	out := Removal{Repository: r.Name, Tags: []string{ref}}
	d, tagged := r.Tags[ref]
	if !tagged {
		d = protocol.Digest(ref)
		out.Tags = r.TagsOf(d)
	}
	if r.Manifests[d] == nil {
		return out, protocol.Errorf(protocol.NotFound, "the registry has no %s that can be read", Reference(r.Name, ref))
	}
	if by := r.indexesOf(d, nil); len(by) > 0 && !tagged {
		return out, protocol.Errorf(protocol.Conflict, "%s is a part of the index %s: remove that first", Reference(r.Name, ref), by[0])
	}
	if len(r.TagsOf(d)) > len(out.Tags) {
		return out, nil
	}
	out.Manifests = r.Orphans(d)
	return out, nil
}

// Orphans returns a manifest that no index names, with those that only it is an index of and
// no tag names; nothing where an index names it. The tags of the first do not count.
func (r *Repository) Orphans(d protocol.Digest) []protocol.Digest {
	if len(r.indexesOf(d, nil)) > 0 {
		return nil
	}
	found := []protocol.Digest{d}
	for i := 0; i < len(found); i++ {
		index := r.Manifests[found[i]]
		if index == nil {
			continue
		}
		for _, c := range index.Manifests {
			child := protocol.Digest(c.Digest)
			if r.Manifests[child] != nil && !slices.Contains(found, child) && len(r.TagsOf(child)) == 0 && len(r.indexesOf(child, found)) == 0 {
				found = append(found, child)
			}
		}
	}
	return found
}

// TagsOf returns the tags that name a manifest, sorted.
func (r *Repository) TagsOf(d protocol.Digest) []string {
	var tags []string
	for _, tag := range slices.Sorted(maps.Keys(r.Tags)) {
		if r.Tags[tag] == d {
			tags = append(tags, tag)
		}
	}
	return tags
}

// indexesOf returns the indexes that name a manifest, but for some, sorted.
func (r *Repository) indexesOf(d protocol.Digest, but []protocol.Digest) []protocol.Digest {
	var indexes []protocol.Digest
	for index, m := range r.Manifests {
		if !slices.Contains(but, index) && slices.ContainsFunc(m.Manifests, func(c artifact.Descriptor) bool { return c.Digest == string(d) }) {
			indexes = append(indexes, index)
		}
	}
	slices.Sort(indexes)
	return indexes
}

// An Entry is a manifest under one of its tags, or under none.
type Entry struct {
	Repository string
	Tag        string // "": no tag names it
	Digest     protocol.Digest
	Kind       string // the artifactType, or else the media type
	Bytes      int64  // of the blobs that it names, with those of the manifests of an index
	// Removed is when the manifest was removed by its names; it can be pulled by its digest until
	// it is collected. Zero: it was not removed.
	Removed time.Time
}

// Entries returns the manifests under their tags, sorted by tag, and then those that
// neither a tag nor an index names.
func (r *Repository) Entries() []Entry {
	var all []Entry
	tagged := map[protocol.Digest]bool{}
	for _, tag := range slices.Sorted(maps.Keys(r.Tags)) {
		tagged[r.Tags[tag]] = true
		all = append(all, r.entry(tag, r.Tags[tag]))
	}
	for _, d := range slices.Sorted(maps.Keys(r.Manifests)) {
		if !tagged[d] && len(r.indexesOf(d, nil)) == 0 {
			all = append(all, r.entry("", d))
		}
	}
	return all
}

func (r *Repository) entry(tag string, d protocol.Digest) Entry {
	e := Entry{Repository: r.Name, Tag: tag, Digest: d}
	m := r.Manifests[d]
	if m == nil {
		return e
	}
	e.Kind = cmp.Or(m.ArtifactType, m.MediaType)
	seen := map[string]bool{}
	for _, d := range append([]protocol.Digest{d}, children(m)...) {
		if m := r.Manifests[d]; m != nil {
			for _, b := range m.Blobs() {
				if !seen[b.Digest] {
					e.Bytes += b.Size
				}
				seen[b.Digest] = true
			}
		}
	}
	return e
}

func children(m *artifact.Manifest) []protocol.Digest {
	var out []protocol.Digest
	for _, c := range m.Manifests {
		out = append(out, protocol.Digest(c.Digest))
	}
	return out
}
