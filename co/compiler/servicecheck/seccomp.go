package servicecheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var (
	actions = []specs.LinuxSeccompAction{
		specs.ActAllow, specs.ActErrno, specs.ActLog, specs.ActTrap, specs.ActTrace, specs.ActKill, specs.ActKillProcess, specs.ActKillThread,
	}
	operators = []specs.LinuxSeccompOperator{
		specs.OpEqualTo, specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpGreaterThan, specs.OpGreaterEqual, specs.OpMaskedEqual,
	}
	architectures = []specs.Arch{
		specs.ArchX86, specs.ArchX86_64, specs.ArchX32, specs.ArchARM, specs.ArchAARCH64, specs.ArchMIPS, specs.ArchMIPS64, specs.ArchMIPS64N32,
		specs.ArchMIPSEL, specs.ArchMIPSEL64, specs.ArchMIPSEL64N32, specs.ArchPPC, specs.ArchPPC64, specs.ArchPPC64LE, specs.ArchS390, specs.ArchS390X,
		specs.ArchPARISC, specs.ArchPARISC64, specs.ArchRISCV64, specs.ArchLOONGARCH64, specs.ArchM68K, specs.ArchSH, specs.ArchSHEB,
	}
)

// Seccomp says what is wrong with a profile in the form of Docker or OCI: a word of it that
// runc does not know, with which no container starts.
func Seccomp(b []byte) error {
	var p struct {
		DefaultAction specs.LinuxSeccompAction `json:"defaultAction"`
		Architectures []specs.Arch             `json:"architectures"`
		ArchMap       []struct {
			Arch     specs.Arch   `json:"architecture"`
			SubArchs []specs.Arch `json:"subArchitectures"`
		} `json:"archMap"`
		Syscalls []struct {
			Action specs.LinuxSeccompAction `json:"action"`
			Args   []specs.LinuxSeccompArg  `json:"args"`
		} `json:"syscalls"`
	}
	if err := json.Unmarshal(b, &p); err != nil || p.DefaultAction == "" {
		return errors.New("want JSON with a defaultAction")
	}
	if err := oneOf("defaultAction", p.DefaultAction, actions); err != nil {
		return err
	}
	used := slices.Clone(p.Architectures)
	for _, m := range p.ArchMap {
		used = append(append(used, m.Arch), m.SubArchs...)
	}
	for _, a := range used {
		if err := oneOf("architecture", a, architectures); err != nil {
			return err
		}
	}
	for i, call := range p.Syscalls {
		if err := oneOf(fmt.Sprintf("syscalls[%d].action", i), call.Action, actions); err != nil {
			return err
		}
		for _, arg := range call.Args {
			if err := oneOf(fmt.Sprintf("syscalls[%d].args: op", i), arg.Op, operators); err != nil {
				return err
			}
		}
	}
	return nil
}

func oneOf[T ~string](what string, value T, known []T) error {
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("%s %q: want one of %s", what, value, known)
}
