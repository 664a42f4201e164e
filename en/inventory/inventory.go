// Package inventory finds out what a node is and how it fares: hardware, system,
// devices of interest, and the values of a heartbeat. It reads the kernel's
// files; what a machine does not say is left empty.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/sensors"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// A Host says what the container engine is.
type Host interface {
	// Info returns the name and the version of the engine.
	Info(ctx context.Context) (engine.Info, error)
}

// Options say whose inventory it is.
type Options struct {
	Node    protocol.NodeID
	Labels  map[string]string
	Version string // of the agent
	Host    Host
	// Root is the directory that holds /dev, /sys, /proc and /etc. Default "/".
	Root string
	// Now is what the node takes for the time of day. Nil: time.Now.
	Now func() time.Time
	// Unsynced reports whether nothing keeps the machine's clock in step. Nil: it is in step.
	Unsynced func() bool
	Logger   *slog.Logger
}

// A Collector reads the node. Its methods may be called concurrently.
type Collector struct {
	o   Options
	log *slog.Logger
}

// New returns a collector.
func New(o Options) *Collector {
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Unsynced == nil {
		o.Unsynced = func() bool { return false }
	}
	return &Collector{o: o, log: o.Logger.With("component", "inventory")}
}

// Serial returns the serial number of the machine, or "" where it says none.
func (c *Collector) Serial() string {
	return strings.ToValidUTF8(c.first("sys/class/dmi/id/product_serial", "proc/device-tree/serial-number"), "\uFFFD")
}

// Boot names the present boot of the kernel; "" where it says none.
func (c *Collector) Boot() string { return c.line("proc/sys/kernel/random/boot_id") }

// Collect returns the inventory. Two calls on an unchanged node return the same.
// An error says that the engine could not be asked; the rest is filled in then.
func (c *Collector) Collect(ctx context.Context) (protocol.Inventory, error) {
	inv := protocol.Inventory{
		V: protocol.Version, Node: c.o.Node, Labels: maps.Clone(c.o.Labels), AgentVersion: c.o.Version,
		Architecture: runtime.GOARCH, OS: c.osName(), Serial: c.Serial(),
		Vendor:      c.first("sys/class/dmi/id/sys_vendor"),
		Model:       c.first("sys/class/dmi/id/product_name", "proc/device-tree/model"),
		Peripherals: c.peripherals(), ClockUnsynced: c.o.Unsynced(),
	}
	var errs []error
	if name, err := os.Hostname(); err == nil {
		inv.Hostname = name
	}
	c.system(ctx, &inv)
	inv.Disks = c.disks(ctx)
	inv.Interfaces = c.interfaces()
	info, err := c.engine(ctx)
	if err != nil {
		errs = append(errs, err)
		inv.EngineFault = err.Error()
	}
	inv.Engine, inv.EngineVersion = info.Name, info.Version
	if u, err := disk.UsageWithContext(ctx, c.storage(info)); err == nil {
		inv.StorageBytes = u.Total
	}
	toUTF8(reflect.ValueOf(&inv).Elem())
	return inv, errors.Join(errs...)
}

// toUTF8 replaces in all texts of v what is not UTF-8: the names of mount points and
// devices are bytes, and one that is no text would make the whole inventory unreadable.
func toUTF8(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.ToValidUTF8(v.String(), "\uFFFD"))
	case reflect.Slice:
		for i := range v.Len() {
			toUTF8(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			toUTF8(v.Field(i))
		}
	default:
	}
}

func (c *Collector) system(ctx context.Context, inv *protocol.Inventory) {
	if k, err := host.KernelVersionWithContext(ctx); err == nil {
		inv.Kernel = k
	}
	if n, err := cpu.CountsWithContext(ctx, true); err == nil {
		inv.Cores = uint32(max(0, n))
	}
	if list, err := cpu.InfoWithContext(ctx); err == nil && len(list) > 0 {
		inv.CPUModel = strings.TrimSpace(list[0].ModelName)
	}
	if m, err := mem.VirtualMemoryWithContext(ctx); err == nil {
		inv.MemoryBytes = m.Total
	}
}

// disks lists the mounted file systems of real devices, each device once.
func (c *Collector) disks(ctx context.Context) []protocol.Disk {
	parts, err := disk.PartitionsWithContext(ctx, false)
	if err != nil {
		c.log.DebugContext(ctx, "file systems not listed", "err", err)
		return nil
	}
	slices.SortFunc(parts, func(a, b disk.PartitionStat) int { return strings.Compare(a.Mountpoint, b.Mountpoint) })
	seen := map[string]bool{}
	var out []protocol.Disk
	for _, p := range parts {
		// Bind mounts show a device again; loops and containers' layers are no disks.
		if seen[p.Device] || strings.HasPrefix(p.Device, "/dev/loop") || p.Fstype == "overlay" || p.Fstype == "squashfs" {
			continue
		}
		seen[p.Device] = true
		d := protocol.Disk{Mount: p.Mountpoint, Device: p.Device, FileSystem: p.Fstype}
		if u, err := disk.UsageWithContext(ctx, p.Mountpoint); err == nil {
			d.TotalBytes = u.Total
		}
		out = append(out, d)
	}
	return out
}

// interfaces lists the network interfaces of the node, without those made for
// containers, which come and go.
func (c *Collector) interfaces() []protocol.Interface {
	list, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var out []protocol.Interface
	for _, i := range list {
		kind, ok := c.interfaceType(i)
		if !ok {
			continue
		}
		entry := protocol.Interface{Name: i.Name, Type: kind, MAC: i.HardwareAddr.String()}
		if addrs, err := i.Addrs(); err == nil {
			for _, a := range addrs {
				// Link-local addresses mean nothing elsewhere.
				if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
					entry.Addresses = append(entry.Addresses, n.String())
				}
			}
		}
		slices.Sort(entry.Addresses)
		out = append(out, entry)
	}
	slices.SortFunc(out, func(a, b protocol.Interface) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Heartbeat returns the node's vital signs of this moment, without StatusDigest. An
// error says that the engine could not be asked; the rest is filled in then.
func (c *Collector) Heartbeat(ctx context.Context) (protocol.Heartbeat, error) {
	h := protocol.Heartbeat{V: protocol.Version, UnixMillis: c.o.Now().UnixMilli()}
	if l, err := load.AvgWithContext(ctx); err == nil {
		h.Load1 = uint32(math.Round(l.Load1 * 100))
	}
	if m, err := mem.VirtualMemoryWithContext(ctx); err == nil {
		h.MemAvailable = m.Available
	}
	if up, err := host.UptimeWithContext(ctx); err == nil {
		h.UptimeSec = up
	}
	info, away := c.engine(ctx)
	if u, err := disk.UsageWithContext(ctx, c.storage(info)); err == nil {
		h.DiskFree = u.Free
	}
	// It returns readings beside an error about those sensors that gave none.
	list, _ := sensors.TemperaturesWithContext(ctx)
	for _, t := range list {
		if milli := int32(t.Temperature * 1000); milli > h.MilliCelsius && milli < 200_000 {
			h.MilliCelsius = milli
		}
	}
	return h, away
}

// engineAnswer is how long the engine may take to say what it is, before the node is shown
// as one whose engine does not answer. A heartbeat waits for it.
const engineAnswer = 10 * time.Second

// engine asks the engine what it is. One that was stopped takes calls, and answers none.
func (c *Collector) engine(ctx context.Context) (engine.Info, error) {
	call, cancel := context.WithTimeout(ctx, engineAnswer)
	defer cancel()
	info, err := c.o.Host.Info(call)
	if err != nil && call.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %s: see that it runs, and is not stopped", engineAnswer)
	}
	return info, err
}

// storage is where the engine's images lie.
func (c *Collector) storage(info engine.Info) string {
	if info.Storage != "" {
		return info.Storage
	}
	return c.o.Root
}

// osName is the name of the distribution, for people.
func (c *Collector) osName() string {
	for _, file := range []string{"etc/os-release", "usr/lib/os-release"} {
		b, err := os.ReadFile(filepath.Join(c.o.Root, file))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				return strings.Trim(v, `"'`)
			}
		}
	}
	return ""
}
