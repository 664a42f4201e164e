package diagnostics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/colonyfleet/colony/internal/hostclock"
	"github.com/colonyfleet/colony/protocol"
)

// mostFiles bounds how many files of the state are named.
const mostFiles = 20_000

// about is what the agent is, and when this was.
type about struct {
	Site       protocol.SiteID `json:"site"`
	Node       protocol.NodeID `json:"node"`
	Version    string          `json:"version"`
	Go         string          `json:"go"`
	Process    int             `json:"pid"`
	At         time.Time       `json:"at"`
	Unsynced   bool            `json:"clockUnsynced,omitempty"`
	Boot       string          `json:"boot"`
	UpSeconds  int64           `json:"secondsSinceBoot"`
	Goroutines int             `json:"goroutines"`
}

func (o Options) about() about {
	return about{
		Site: o.Site, Node: o.Node, Version: o.Version, Go: runtime.Version(), Process: os.Getpid(), At: o.Now().UTC(), Unsynced: hostclock.Unsynced(),
		Boot: hostclock.Boot(), UpSeconds: int64(hostclock.SinceBoot() / time.Second), Goroutines: runtime.NumGoroutine(),
	}
}

// files are those of the machine that are collected: their names in the archive, and their paths.
var files = [][2]string{
	{"system/os-release", "/etc/os-release"},
	{"system/version", "/proc/version"},
	{"system/meminfo", "/proc/meminfo"},
	{"system/loadavg", "/proc/loadavg"},
	{"system/stat", "/proc/stat"},
	{"system/vmstat", "/proc/vmstat"},
	{"system/pressure-cpu", "/proc/pressure/cpu"},
	{"system/pressure-memory", "/proc/pressure/memory"},
	{"system/pressure-io", "/proc/pressure/io"},
	{"system/mounts", "/proc/self/mounts"},
	{"system/diskstats", "/proc/diskstats"},
	{"system/cgroup", "/proc/self/cgroup"},
	{"system/agent-status", "/proc/self/status"},
	{"system/agent-limits", "/proc/self/limits"},
	{"network/resolv.conf", "/etc/resolv.conf"},
	{"network/hosts", "/etc/hosts"},
	{"network/route", "/proc/net/route"},
	{"network/ipv6_route", "/proc/net/ipv6_route"},
	{"network/arp", "/proc/net/arp"},
	{"network/dev", "/proc/net/dev"},
	{"network/tcp", "/proc/net/tcp"},
	{"network/tcp6", "/proc/net/tcp6"},
	{"network/udp", "/proc/net/udp"},
	{"network/snmp", "/proc/net/snmp"},
	{"network/netstat", "/proc/net/netstat"},
}

// system are the parts about the machine, and about the process of the agent.
func system() []part {
	parts := []part{
		{"system/kernel.log", func(_ context.Context, w io.Writer) error {
			buffer := make([]byte, mostPart)
			n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buffer)
			if err == nil {
				_, err = w.Write(buffer[:n])
			}
			return err
		}},
		{"system/interfaces.txt", func(_ context.Context, w io.Writer) error { return interfaces(w) }},
		{"system/goroutines.txt", func(_ context.Context, w io.Writer) error { return pprof.Lookup("goroutine").WriteTo(w, 1) }},
	}
	for _, f := range files {
		name, path := f[0], f[1]
		parts = append(parts, part{name, func(_ context.Context, w io.Writer) error {
			f, err := os.Open(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // such as of a kernel without it
			}
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(w, io.LimitReader(f, 2*mostPart))
			return err
		}})
	}
	return parts
}

func interfaces(w io.Writer) error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		text := make([]string, len(addrs))
		for j, a := range addrs {
			text[j] = a.String()
		}
		fault := ""
		if err != nil {
			fault = ": " + err.Error()
		}
		if _, err := fmt.Fprintf(w, "%d %s %s mtu %d %s %s%s\n", i.Index, i.Name, i.Flags, i.MTU, i.HardwareAddr, strings.Join(text, " "), fault); err != nil {
			return err
		}
	}
	return nil
}

// tree names the files below a directory, with their sizes and times; those of volumes by their directory alone.
func tree(ctx context.Context, w io.Writer, dir string) error {
	count := 0
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			_, err = fmt.Fprintf(w, "%s: %v\n", path, err)
			return err
		}
		if count++; count > mostFiles {
			return fmt.Errorf("more than %d files: the others are left out", mostFiles)
		}
		st, err := e.Info()
		if err != nil {
			_, err = fmt.Fprintf(w, "%s: %v\n", path, err)
			return err
		}
		if _, err := fmt.Fprintf(w, "%s %10d %s %s\n", st.Mode(), st.Size(), st.ModTime().UTC().Format(time.RFC3339), path); err != nil {
			return err
		}
		if rel, err := filepath.Rel(dir, path); err == nil && e.IsDir() && filepath.Dir(rel) == "engine/volumes" {
			return fs.SkipDir
		}
		return nil
	})
}
