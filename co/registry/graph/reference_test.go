package graph

import "testing"

func TestReferences(t *testing.T) {
	t.Parallel()
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for image, want := range map[string][2]string{
		"hello:1.0": {"hello", "1.0"}, "plant/hello@" + digest: {"plant/hello", digest},
		"hello": {}, "hello:": {}, ":1": {}, "@" + digest: {}, "": {},
	} {
		repository, ref, ok := Split(image)
		if ok != (want[0] != "") || ok && (repository != want[0] || ref != want[1]) {
			t.Errorf("Split(%q) = %q, %q, %t, want %q", image, repository, ref, ok, want)
		}
		if ok && Reference(repository, ref) != image {
			t.Errorf("Reference(Split(%q)) = %q", image, Reference(repository, ref))
		}
	}
	for image, want := range map[string]string{
		"nginx:1": "docker.io", "grafana/grafana": "docker.io", "docker.io/library/nginx": "docker.io", "ghcr.io/a/b:1": "ghcr.io",
		"localhost/a": "localhost", "127.0.0.1:5000/a": "127.0.0.1:5000", "registry.colony/a/b": "registry.colony", "Host/a": "Host",
	} {
		if got := Host(image); got != want {
			t.Errorf("Host(%q) = %q, want %q", image, got, want)
		}
	}
}
