// Package target says where a reference to an OCI registry is dialled.
package target

import (
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/colonyfleet/colony/protocol"
)

// A Target is a reference in two forms: as it was written, and where it is dialled.
type Target struct {
	Written name.Reference
	Dialled name.Reference
	// Own says that its registry has an address in Hosts, as the fleet's own has.
	Own bool
}

// Host is the host of the registry as references name it; that of Docker Hub is docker.io.
func (t Target) Host() string {
	host, _, _ := strings.Cut(t.Repository(), "/")
	return host
}

// Repository is the repository as container engines name it.
func (t Target) Repository() string {
	r := t.Written.Context()
	if r.RegistryStr() == name.DefaultRegistry {
		return "docker.io/" + r.RepositoryStr()
	}
	return r.Name()
}

// Hosts say which registries are dialled elsewhere than at their name, or without TLS. It is not changed once
// it is made, so that its methods may be called concurrently.
type Hosts struct {
	addresses map[string]string // by the host of references
	insecure  map[string]bool   // further hosts of references that are dialled without TLS
	plain     map[string]bool   // the addresses that are dialled without TLS
	written   map[string]string // by the address that is dialled in its place, the host of references
}

// New returns hosts: addresses has the address, host:port, that is dialled by plain HTTP in the place of a host, or
// https://host:port, which is dialled with TLS; insecure lists further hosts that are dialled by plain HTTP.
func New(addresses map[string]string, insecure []string) Hosts {
	h := Hosts{addresses: addresses, insecure: map[string]bool{}, plain: map[string]bool{}, written: map[string]string{}}
	for host, address := range addresses {
		h.written[strings.TrimPrefix(address, "https://")] = host
		h.plain[address] = true // one with https:// is the host of no URL
	}
	for _, host := range insecure {
		h.insecure[host], h.plain[host] = true, true
	}
	return h
}

// Plain are the addresses that are dialled without TLS.
func (h Hosts) Plain() map[string]bool { return h.plain }

// Written returns the host of references in whose place an address is dialled; the address where there is none.
func (h Hosts) Written(address string) string {
	if host, ok := h.written[address]; ok {
		return host
	}
	return address
}

// Parse reads a reference, with or without oci://. The error is of kind Invalid.
func (h Hosts) Parse(ref string) (Target, error) {
	written, err := name.ParseReference(strings.TrimPrefix(ref, "oci://"))
	if err != nil {
		return Target{}, protocol.Errorf(protocol.Invalid, "reference %q: %w", ref, err)
	}
	host := written.Context().RegistryStr()
	address := h.addresses[host]
	t := Target{Written: written, Dialled: written, Own: address != ""}
	if !t.Own && !h.insecure[host] {
		return t, nil
	}
	if !t.Own {
		address = host
	}
	security := []name.Option{name.Insecure}
	if secure, ok := strings.CutPrefix(address, "https://"); ok {
		address, security = secure, nil
	}
	registry, err := name.NewRegistry(address, security...)
	if err != nil {
		return Target{}, protocol.Errorf(protocol.Invalid, "address %q of registry %s: %w", address, host, err)
	}
	repository := registry.Repo(written.Context().RepositoryStr())
	if d, ok := written.(name.Digest); ok {
		t.Dialled = repository.Digest(d.DigestStr())
	} else {
		t.Dialled = repository.Tag(written.Identifier())
	}
	return t, nil
}
