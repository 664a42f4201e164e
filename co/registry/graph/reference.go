package graph

import (
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// Reference joins the name of a repository with a tag or a digest.
func Reference(repository, ref string) string {
	if _, err := protocol.ParseDigest(ref); err == nil {
		return repository + "@" + ref
	}
	return repository + ":" + ref
}

// Split takes apart what Reference joins: REPOSITORY:TAG or REPOSITORY@DIGEST, without the name
// of a registry. ok is false where the repository, or the tag or digest, is missing.
func Split(image string) (repository, ref string, ok bool) {
	repository, ref, ok = strings.Cut(image, "@")
	if !ok {
		repository, ref, ok = strings.Cut(image, ":")
	}
	return repository, ref, ok && repository != "" && ref != ""
}

// dockerHub is the registry of images whose names have none.
const dockerHub = "docker.io"

// Host returns the registry of an image: what stands before the first slash, where it cannot be
// the name of a user of Docker Hub.
func Host(image string) string {
	host, _, ok := strings.Cut(image, "/")
	if !ok || host != "localhost" && !strings.ContainsAny(host, ".:") && strings.ToLower(host) == host {
		return dockerHub
	}
	return host
}
