// Package cgroupusage reads what the processes of a control group of this machine use, from the files of the kernel: the documentation of Linux, "Control Group v2",
// sections "Memory", "CPU" and "IO", "cgroup-v1/memory", "cgroup-v1/cpuacct", "cgroup-v1/blkio-controller", and proc(5), /proc/pid/net/dev.
package cgroupusage

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A Usage is what the processes of a control group use.
type Usage struct {
	// CPU is the time of processors that they have used since the group was made.
	CPU time.Duration
	// Memory is what they use now, in bytes, without file pages that were not used for a while and that the kernel takes back first.
	Memory uint64
	// MemoryLimit is how much they may use, in bytes; 0: there is no limit.
	MemoryLimit uint64
	// IO is what they have read and written of block devices; nil: the kernel does not count it.
	IO *IO
	// Network is what came and went in their network namespace; nil: they are in that of the machine.
	Network *Network
}

// An IO counts bytes of block devices.
type IO struct{ Read, Written uint64 }

// A Network counts bytes of network interfaces, without that for the machine itself.
type Network struct{ Received, Sent uint64 }

// A Source is where the kernel has its files. It holds no state.
type Source struct{ cgroups, proc string }

// System returns those of this machine.
func System() Source { return Source{"/sys/fs/cgroup", "/proc"} }

// Read returns the usage of a group; known is false where it is not there, or has no process. Group is its path, which begins with a slash.
// It may be called concurrently.
func (s Source) Read(group string) (u Usage, known bool) {
	var pids []string
	if _, err := os.Stat(filepath.Join(s.cgroups, "cgroup.controllers")); err == nil {
		u, pids = s.version2(group)
	} else {
		u, pids = s.version1(group)
	}
	if len(pids) == 0 {
		return Usage{}, false
	}
	u.Network = s.network(pids)
	return u, true
}

func (s Source) version2(group string) (u Usage, pids []string) {
	dir := filepath.Join(s.cgroups, group)
	u.CPU = time.Duration(keyed(read(dir, "cpu.stat"), "usage_usec")) * time.Microsecond
	u.Memory = less(number(read(dir, "memory.current")), keyed(read(dir, "memory.stat"), "inactive_file"))
	u.MemoryLimit = number(read(dir, "memory.max")) // "max" is no number
	if b, err := os.ReadFile(filepath.Join(dir, "io.stat")); err == nil {
		u.IO = &IO{}
		for field := range strings.FieldsSeq(string(b)) {
			name, value, _ := strings.Cut(field, "=")
			switch name {
			case "rbytes":
				u.IO.Read += number(value)
			case "wbytes":
				u.IO.Written += number(value)
			}
		}
	}
	return u, strings.Fields(read(dir, "cgroup.procs"))
}

// unlimited is from where on a limit of version 1 is none.
const unlimited = 1 << 62

func (s Source) version1(group string) (u Usage, pids []string) {
	memory := filepath.Join(s.cgroups, "memory", group)
	u.CPU = time.Duration(number(read(filepath.Join(s.cgroups, "cpuacct", group), "cpuacct.usage")))
	u.Memory = less(number(read(memory, "memory.usage_in_bytes")), keyed(read(memory, "memory.stat"), "total_inactive_file"))
	if u.MemoryLimit = number(read(memory, "memory.limit_in_bytes")); u.MemoryLimit >= unlimited {
		u.MemoryLimit = 0
	}
	if b, err := os.ReadFile(filepath.Join(s.cgroups, "blkio", group, "blkio.throttle.io_service_bytes_recursive")); err == nil {
		u.IO = &IO{}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line) // device, operation, bytes
			if len(f) != 3 {
				continue
			}
			switch f[1] {
			case "Read":
				u.IO.Read += number(f[2])
			case "Write":
				u.IO.Written += number(f[2])
			}
		}
	}
	return u, strings.Fields(read(memory, "cgroup.procs"))
}

// maxAsked is how many processes are asked for their network: one of them may have ended.
const maxAsked = 3

func (s Source) network(pids []string) *Network {
	own, err := os.Readlink(filepath.Join(s.proc, "self/ns/net"))
	if err != nil {
		return nil
	}
	for _, pid := range pids[:min(len(pids), maxAsked)] {
		theirs, err := os.Readlink(filepath.Join(s.proc, pid, "ns/net"))
		if err != nil {
			continue
		}
		if theirs == own {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(s.proc, pid, "net/dev"))
		if err != nil {
			continue
		}
		n := &Network{}
		for line := range strings.Lines(string(b)) {
			name, rest, ok := strings.Cut(line, ":")
			if f := strings.Fields(rest); ok && len(f) >= 9 && strings.TrimSpace(name) != "lo" {
				n.Received, n.Sent = n.Received+number(f[0]), n.Sent+number(f[8])
			}
		}
		return n
	}
	return nil
}

// read returns the content of a file; "" where there is none.
func read(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return string(b)
}

// number returns what a text says; 0 where it is no number.
func number(text string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// keyed returns the number after a key in lines of both.
func keyed(text, key string) uint64 {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			return number(value)
		}
	}
	return 0
}

// less returns a-b; the two were not read at one moment.
func less(a, b uint64) uint64 { return a - min(a, b) }
