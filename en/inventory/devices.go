package inventory

import (
	"cmp"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// placeholders are what makers leave in the fields that they do not fill in.
var placeholders = []string{"", "none", "default string", "to be filled by o.e.m.", "not specified", "system serial number", "system product name", "system manufacturer", "0", "unknown"}

// first returns the content of the first of the files that says something.
func (c *Collector) first(files ...string) string {
	for _, f := range files {
		if s := c.line(f); !slices.Contains(placeholders, strings.ToLower(s)) {
			return s
		}
	}
	return ""
}

// line returns the content of a small file of the kernel, without its end.
func (c *Collector) line(file string) string {
	b, err := os.ReadFile(filepath.Join(c.o.Root, file))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(strings.Trim(string(b), "\x00\n\t "), "?")
}

// glob returns the matches of a pattern below the root, relative to it.
func (c *Collector) glob(pattern string) []string {
	list, err := filepath.Glob(filepath.Join(c.o.Root, pattern))
	if err != nil {
		return nil
	}
	for i := range list {
		list[i] = strings.TrimPrefix(strings.TrimPrefix(list[i], c.o.Root), "/")
	}
	return list
}

// interfaceType says what a network interface is. Loopback and what the kernel
// made up, bridges and their ports for example, are none of the node's own; but
// CAN interfaces count where they are virtual.
func (c *Collector) interfaceType(i net.Interface) (kind string, ok bool) {
	dir := "sys/class/net/" + i.Name
	const arphrdCAN = "280"
	_, err := os.Stat(filepath.Join(c.o.Root, dir, "device"))
	hardware := err == nil
	switch {
	case c.line(dir+"/type") == arphrdCAN:
		return "can", true
	case i.Flags&net.FlagLoopback != 0:
		return "", false
	case c.exists(dir+"/wireless") || c.exists(dir+"/phy80211"):
		return "wifi", true
	case strings.HasPrefix(i.Name, "wwan") || strings.HasPrefix(i.Name, "wwp") || strings.HasPrefix(i.Name, "ppp"):
		return "cellular", true
	case hardware && c.line(dir+"/type") == "1":
		return "ethernet", true
	case hardware:
		return "other", true
	// Without hardware, eth0 is that of a virtual machine or a container.
	case strings.HasPrefix(i.Name, "eth") || strings.HasPrefix(i.Name, "en"):
		return "ethernet", true
	default:
		return "", false
	}
}

func (c *Collector) exists(path string) bool {
	_, err := os.Stat(filepath.Join(c.o.Root, path))
	return err == nil
}

// peripherals lists the devices that applications ask for, sorted.
func (c *Collector) peripherals() []protocol.Peripheral {
	out := slices.Concat(c.gpus(), c.serials(), c.cans(), c.cameras())
	slices.SortFunc(out, func(a, b protocol.Peripheral) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Path, b.Path))
	})
	return out
}

// vendors names the PCI vendors of graphics processors.
var vendors = map[string]string{"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x14c3": "MediaTek", "0x13b5": "Arm", "0x1b36": "Red Hat", "0x1af4": "Red Hat"}

func (c *Collector) gpus() []protocol.Peripheral {
	var out []protocol.Peripheral
	for _, node := range c.glob("sys/class/drm/renderD*") {
		out = append(out, protocol.Peripheral{
			Type: "gpu", Path: "/dev/dri/" + filepath.Base(node),
			Manufacturer: vendors[c.line(node+"/device/vendor")], Model: c.first(node+"/device/label", node+"/device/device"),
		})
	}
	for _, node := range c.glob("dev/nvidia[0-9]*") {
		out = append(out, protocol.Peripheral{Type: "gpu", Path: "/" + node, Manufacturer: "NVIDIA"})
	}
	return out
}

// serials lists serial ports with a device behind them: the kernel shows the
// usual four 8250 ports also where there are none.
func (c *Collector) serials() []protocol.Peripheral {
	var out []protocol.Peripheral
	for _, tty := range c.glob("sys/class/tty/*") {
		name := filepath.Base(tty)
		driver, err := filepath.EvalSymlinks(filepath.Join(c.o.Root, tty, "device/driver"))
		if err != nil || filepath.Base(driver) == "serial8250" {
			continue // none, or the driver that stands in for absent ports
		}
		if port := c.line(tty + "/type"); strings.HasPrefix(name, "ttyS") && port == "0" {
			continue // PORT_UNKNOWN
		}
		p := protocol.Peripheral{Type: "serial", Path: "/dev/" + name}
		// USB has the names two levels up, at the device of the interface.
		for _, up := range []string{"/device/..", "/device/../.."} {
			p.Manufacturer = cmp.Or(p.Manufacturer, c.usb(tty+up, "manufacturer"))
			p.Model = cmp.Or(p.Model, c.usb(tty+up, "product"))
		}
		out = append(out, p)
	}
	return out
}

// usb reads an attribute of a device whose directory is found over links.
func (c *Collector) usb(dir, attribute string) string {
	// filepath.Join would take ".." lexically, past the link.
	b, err := os.ReadFile(c.o.Root + "/" + dir + "/" + attribute)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "?"))
}

func (c *Collector) cans() []protocol.Peripheral {
	var out []protocol.Peripheral
	for _, dir := range c.glob("sys/class/net/*") {
		if c.line(dir+"/type") == "280" {
			out = append(out, protocol.Peripheral{Type: "can", Path: filepath.Base(dir)})
		}
	}
	return out
}

// cameras lists the first video node of each camera; further ones carry metadata.
func (c *Collector) cameras() []protocol.Peripheral {
	var out []protocol.Peripheral
	for _, dir := range c.glob("sys/class/video4linux/video*") {
		if index := c.line(dir + "/index"); index == "0" || index == "" {
			out = append(out, protocol.Peripheral{Type: "camera", Path: "/dev/" + filepath.Base(dir), Model: c.line(dir + "/name")})
		}
	}
	return out
}
