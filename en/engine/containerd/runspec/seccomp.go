package runspec

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// A profile is a seccomp profile in the form of Docker, which that of OCI is a part of.
type profile struct {
	DefaultAction    specs.LinuxSeccompAction `json:"defaultAction"`
	DefaultErrnoRet  *uint                    `json:"defaultErrnoRet"`
	Architectures    []specs.Arch             `json:"architectures"`
	ArchMap          []archMap                `json:"archMap"`
	Flags            []specs.LinuxSeccompFlag `json:"flags"`
	ListenerPath     string                   `json:"listenerPath"`
	ListenerMetadata string                   `json:"listenerMetadata"`
	Syscalls         []rule                   `json:"syscalls"`
}

type archMap struct {
	Arch     specs.Arch   `json:"architecture"`
	SubArchs []specs.Arch `json:"subArchitectures"`
}

type rule struct {
	specs.LinuxSyscall
	Name     string `json:"name"` // the older form of names
	Includes filter `json:"includes"`
	Excludes filter `json:"excludes"`
}

// A filter says for which containers a rule is.
type filter struct {
	Caps      []string `json:"caps"`
	Arches    []string `json:"arches"`
	MinKernel string   `json:"minKernel"`
}

// parseProfile reads a profile of Docker's or OCI's form.
func parseProfile(b []byte) (*profile, error) {
	p := new(profile)
	if err := json.Unmarshal(b, p); err != nil {
		return nil, err
	}
	switch {
	case p.DefaultAction == "":
		return nil, errors.New("it has no defaultAction")
	case len(p.Architectures) > 0 && len(p.ArchMap) > 0:
		return nil, errors.New("it has both architectures and archMap: give one")
	case p.ListenerPath != "" || p.ListenerMetadata != "":
		return nil, errors.New("it wants to notify a listener, which a node does not have")
	}
	for i, r := range p.Syscalls {
		if r.Name != "" && len(r.Names) > 0 {
			return nil, fmt.Errorf("syscalls[%d] has both name and names: give one", i)
		}
		if r.Includes.MinKernel != "" && r.Excludes.MinKernel != "" {
			return nil, fmt.Errorf("syscalls[%d] has minKernel twice", i)
		}
	}
	return p, nil
}

// nativeArch is the machine's architecture as seccomp calls it.
var nativeArch = map[string]specs.Arch{
	"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64, "arm": specs.ArchARM, "386": specs.ArchX86, "riscv64": specs.ArchRISCV64,
}[runtime.GOARCH]

// forContainer returns the rules that hold for a container with these capabilities. A
// kernel that runs this agent is younger than every minKernel in use.
func (p *profile) forContainer(capabilities []string) *specs.LinuxSeccomp {
	out := &specs.LinuxSeccomp{
		DefaultAction: p.DefaultAction, DefaultErrnoRet: p.DefaultErrnoRet, Architectures: p.Architectures, Flags: p.Flags,
	}
	for _, m := range p.ArchMap {
		if m.Arch == nativeArch {
			out.Architectures = append([]specs.Arch{m.Arch}, m.SubArchs...)
		}
	}
	held := func(name string) bool { return slices.Contains(capabilities, name) }
	here := func(arch string) bool { return arch == runtime.GOARCH }
	for _, r := range p.Syscalls {
		if slices.ContainsFunc(r.Excludes.Arches, here) || slices.ContainsFunc(r.Excludes.Caps, held) || r.Excludes.MinKernel != "" ||
			len(r.Includes.Arches) > 0 && !slices.ContainsFunc(r.Includes.Arches, here) ||
			slices.ContainsFunc(r.Includes.Caps, func(name string) bool { return !held(name) }) {
			continue
		}
		call := r.LinuxSyscall
		if r.Name != "" {
			call.Names = []string{r.Name}
		}
		out.Syscalls = append(out.Syscalls, call)
	}
	return out
}
