package graph_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/registry/artifact"
	"github.com/colonyfleet/colony/co/registry/graph"
	"github.com/colonyfleet/colony/protocol"
)

func digest(name string) protocol.Digest { return protocol.DigestOf([]byte(name)) }

// repository has the images a and b, the index i of a and b, the index j of b and the nested
// index n of i, each under its name; tags maps further tags to them.
func repository(tags map[string]string) *graph.Repository {
	index := func(children ...string) *artifact.Manifest {
		m := &artifact.Manifest{MediaType: "index"}
		for _, c := range children {
			m.Manifests = append(m.Manifests, artifact.Descriptor{Digest: string(digest(c))})
		}
		return m
	}
	image := func(blob string, size int64) *artifact.Manifest {
		config := artifact.Descriptor{Digest: blob, Size: size}
		shared := artifact.Descriptor{Digest: "shared", Size: 100}
		return &artifact.Manifest{MediaType: "image", Config: &config, Layers: []artifact.Descriptor{shared}}
	}
	r := &graph.Repository{Name: "app", Tags: map[string]protocol.Digest{}, Manifests: map[protocol.Digest]*artifact.Manifest{
		digest("a"): image("ca", 1), digest("b"): image("cb", 2),
		digest("i"): index("a", "b"), digest("j"): index("b"), digest("n"): index("i"),
	}}
	for tag, name := range tags {
		r.Tags[tag] = digest(name)
	}
	return r
}

func names(digests []protocol.Digest) string {
	var out []string
	for _, d := range digests {
		for _, name := range []string{"a", "b", "i", "j", "n"} {
			if d == digest(name) {
				out = append(out, name)
			}
		}
	}
	return strings.Join(out, " ")
}

func TestRemoval(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tags            map[string]string
		ref             string
		tagsGo, digests string
		kind            protocol.Kind
	}{
		"an index with its only image":         {map[string]string{"1": "n"}, "1", "1", "n i a", ""},
		"what another index names stays":       {map[string]string{"1": "n", "2": "j"}, "2", "2", "j", ""},
		"what a tag names stays":               {map[string]string{"1": "n", "2": "a"}, "1", "1", "n i", ""},
		"one of two tags":                      {map[string]string{"1": "n", "2": "n"}, "1", "1", "", ""},
		"a tag of a part of an index":          {map[string]string{"1": "a"}, "1", "1", "", ""},
		"a digest goes with all its tags":      {map[string]string{"1": "n", "2": "n"}, string(digest("n")), "1 2", "n i a", ""},
		"a part of an index, by its digest":    {map[string]string{"1": "n"}, string(digest("a")), "", "", protocol.Conflict},
		"a tag that is not there":              {map[string]string{"1": "n"}, "2", "", "", protocol.NotFound},
		"a digest that is not there":           {nil, string(digest("other")), "", "", protocol.NotFound},
		"a tag of a manifest that is not read": {map[string]string{"1": "other"}, "1", "", "", protocol.NotFound},
	} {
		got, err := repository(tt.tags).Removal(tt.ref)
		if tt.kind != "" {
			if protocol.KindOf(err) != tt.kind {
				t.Errorf("%s: %v, want an error of kind %s", name, err, tt.kind)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if tags := strings.Join(got.Tags, " "); tags != tt.tagsGo || names(got.Manifests) != tt.digests {
			t.Errorf("%s: tags %q and manifests %q go, want %q and %q", name, tags, names(got.Manifests), tt.tagsGo, tt.digests)
		}
	}
}

// Each manifest is listed under its tags; one that neither a tag nor an index names without.
func TestEntries(t *testing.T) {
	t.Parallel()
	want := []graph.Entry{
		{Repository: "app", Tag: "1", Digest: digest("i"), Kind: "index", Bytes: 103},
		{Repository: "app", Tag: "2", Digest: digest("a"), Kind: "image", Bytes: 101},
		{Repository: "app", Digest: digest("j"), Kind: "index", Bytes: 102},
	}
	r := repository(map[string]string{"1": "i", "2": "a"})
	delete(r.Manifests, digest("n"))
	if diff := cmp.Diff(want, r.Entries()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}
