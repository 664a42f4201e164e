package inventory

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

type engineHost struct {
	info engine.Info
	err  error
}

func (h engineHost) Info(context.Context) (engine.Info, error) { return h.info, h.err }

func collector(t *testing.T, root string, h Host) *Collector {
	t.Helper()
	return New(Options{
		Node: "n1", Labels: map[string]string{"line": "4"}, Version: "1.2.3", Host: h, Root: root, Logger: slog.New(slog.DiscardHandler),
	})
}

// stoppedHost is an engine that takes calls and answers none.
type stoppedHost struct{}

func (stoppedHost) Info(ctx context.Context) (engine.Info, error) {
	<-ctx.Done()
	return engine.Info{}, ctx.Err()
}

// An engine that does not answer is shown as that, and holds up a heartbeat for seconds only.
func TestStoppedEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := collector(t, "", stoppedHost{})
		began := time.Now()
		if _, err := c.Heartbeat(t.Context()); err == nil || !strings.Contains(err.Error(), "no answer within") {
			t.Errorf("heartbeat: %v, want that there is no answer", err)
		}
		if took := time.Since(began); took > engineAnswer {
			t.Errorf("a heartbeat took %v", took)
		}
		inv, err := c.Collect(t.Context())
		if err == nil || inv.EngineFault != err.Error() || inv.Kernel == "" {
			t.Errorf("inventory of kernel %q with engine fault %q, %v", inv.Kernel, inv.EngineFault, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Heartbeat(ctx); err == nil || strings.Contains(err.Error(), "no answer within") {
			t.Errorf("cancelled: %v, want the cause", err)
		}
	})
}

func TestThisMachine(t *testing.T) {
	t.Parallel()
	c := collector(t, "", engineHost{info: engine.Info{Name: "containerd", Version: "2.0", Storage: t.TempDir()}})
	inv, err := c.Collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said := []string{string(inv.Node), inv.Labels["line"], inv.AgentVersion, inv.Engine, inv.EngineVersion, inv.Architecture}
	if diff := cmp.Diff([]string{"n1", "4", "1.2.3", "containerd", "2.0", runtime.GOARCH}, said); diff != "" {
		t.Errorf("node, label, agent, engine, its version and architecture (-want +got):\n%s", diff)
	}
	for what, known := range map[string]bool{
		"cores": inv.Cores > 0, "64 MiB of memory": inv.MemoryBytes >= 64<<20, "kernel": inv.Kernel != "", "system": inv.OS != "",
		"host name": inv.Hostname != "", "storage": inv.StorageBytes > 0,
	} {
		if !known {
			t.Errorf("the inventory of this machine has no %s: %+v", what, inv)
		}
	}
	boot := c.Boot()
	if form := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`); !form.MatchString(boot) {
		t.Errorf("the boot is named %q, want a UUID", boot)
	}
	c.o.Unsynced = func() bool { return true }
	if marked, err := c.Collect(t.Context()); err != nil || inv.ClockUnsynced || !marked.ClockUnsynced {
		t.Errorf("the clock is marked: %t, and once nothing keeps it in step: %t (%v)", inv.ClockUnsynced, marked.ClockUnsynced, err)
	}
	c.o.Unsynced = func() bool { return false }
	again, err := c.Collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(inv, again); diff != "" {
		t.Errorf("a second look at the same machine differs: %s", diff)
	}
}

func TestEngineAwayLeavesTheRest(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	inv, err := collector(t, "", engineHost{err: away}).Collect(t.Context())
	if !errors.Is(err, away) || inv.Cores == 0 || inv.Engine != "" || inv.EngineFault != "away" {
		t.Errorf("%+v, %v", inv, err)
	}
}

// Mount points and devices are named in bytes: one that is no text must not make
// the inventory unreadable.
func TestNamesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, content := range map[string]string{"etc/os-release": "PRETTY_NAME=\"Li\xffnux\"\n", "dev/nvidia\xfe": ""} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inv, err := collector(t, root, engineHost{}).Collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var read protocol.Inventory
	if err := protocol.Unmarshal(protocol.Marshal(inv), &read); err != nil {
		t.Fatalf("the inventory cannot be read: %v", err)
	}
	if read.OS != "Li\uFFFDnux" {
		t.Errorf("system %q, want the bad byte replaced", read.OS)
	}
	disk := protocol.Inventory{Disks: []protocol.Disk{{Mount: "/mnt/\xff"}}}
	if toUTF8(reflect.ValueOf(&disk).Elem()); disk.Disks[0].Mount != "/mnt/\uFFFD" {
		t.Errorf("mount point %q, want the bad byte replaced", disk.Disks[0].Mount)
	}
}

func TestHeartbeatIsSmall(t *testing.T) {
	t.Parallel()
	h, err := collector(t, "", engineHost{}).Heartbeat(t.Context())
	if err != nil || h.MemAvailable == 0 || h.DiskFree == 0 || h.UptimeSec == 0 || h.UnixMillis == 0 {
		t.Errorf("heartbeat %+v", h)
	}
	h.StatusDigest, h.MilliCelsius, h.Load1 = 1<<63, 85_000, 12_345
	if n := len(protocol.Marshal(h)); n >= 64 {
		t.Errorf("heartbeat of %d bytes, want under 64", n)
	}
}

// TestDevices reads a gateway laid out in a directory.
func TestDevices(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, content := range map[string]string{
		"etc/os-release":                          "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
		"sys/class/dmi/id/sys_vendor":             "Advantech\n",
		"sys/class/dmi/id/product_name":           "Default string\n",
		"sys/class/dmi/id/product_serial":         "None\n",
		"proc/device-tree/model":                  "UNO-220\x00",
		"proc/device-tree/serial-number":          "10000abc\x00",
		"sys/class/drm/renderD128/device/vendor":  "0x8086\n",
		"sys/class/drm/renderD128/device/device":  "0x9a49\n",
		"dev/nvidia0":                             "",
		"dev/nvidiactl":                           "",
		"sys/class/net/can0/type":                 "280\n",
		"sys/class/net/eth0/type":                 "1\n",
		"sys/class/video4linux/video0/name":       "C920\n",
		"sys/class/video4linux/video0/index":      "0\n",
		"sys/class/video4linux/video1/index":      "1\n",
		"sys/devices/usb1/1-1/manufacturer":       "FTDI\n",
		"sys/devices/usb1/1-1/product":            "FT232R\n",
		"sys/devices/usb1/1-1/1-1:1.0/ttyUSB0/x":  "",
		"sys/bus/drivers/ftdi_sio/x":              "",
		"sys/bus/drivers/serial8250/x":            "",
		"sys/devices/platform/serial8250/absent":  "",
		"sys/class/tty/ttyS9/type":                "4\n",
		"sys/class/tty/tty0/type":                 "",
		"sys/class/tty/ttyUSB0/type":              "",
		"sys/bus/drivers/uart-pl011/x":            "",
		"sys/devices/platform/uart/ttyAMA0/empty": "",
		"sys/class/tty/ttyAMA0/type":              "",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"sys/class/tty/ttyUSB0/device":                "sys/devices/usb1/1-1/1-1:1.0/ttyUSB0",
		"sys/devices/usb1/1-1/1-1:1.0/ttyUSB0/driver": "sys/bus/drivers/ftdi_sio",
		"sys/class/tty/ttyS9/device":                  "sys/devices/platform/serial8250",
		"sys/devices/platform/serial8250/driver":      "sys/bus/drivers/serial8250",
		"sys/class/tty/ttyAMA0/device":                "sys/devices/platform/uart/ttyAMA0",
		"sys/devices/platform/uart/ttyAMA0/driver":    "sys/bus/drivers/uart-pl011",
	} {
		if err := os.Symlink(filepath.Join(root, target), filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	inv, err := collector(t, root, engineHost{}).Collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if inv.OS != "Debian GNU/Linux 12 (bookworm)" || inv.Vendor != "Advantech" || inv.Model != "UNO-220" || inv.Serial != "10000abc" {
		t.Errorf("%q %q %q %q", inv.OS, inv.Vendor, inv.Model, inv.Serial)
	}
	want := []protocol.Peripheral{
		{Type: "camera", Path: "/dev/video0", Model: "C920"},
		{Type: "can", Path: "can0"},
		{Type: "gpu", Path: "/dev/dri/renderD128", Manufacturer: "Intel", Model: "0x9a49"},
		{Type: "gpu", Path: "/dev/nvidia0", Manufacturer: "NVIDIA"},
		{Type: "serial", Path: "/dev/ttyAMA0"},
		{Type: "serial", Path: "/dev/ttyUSB0", Manufacturer: "FTDI", Model: "FT232R"},
	}
	if diff := cmp.Diff(want, inv.Peripherals); diff != "" {
		t.Error(diff)
	}
}
