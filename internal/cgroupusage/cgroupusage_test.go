package cgroupusage

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

const dev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     900       9    0    0    0     0          0         0      900       9    0    0    0     0       0          0
  eth0:    1500      10    0    0    0     0          0         0      700       8    0    0    0     0       0          0
`

// TestRead reads files as a kernel has them, of both versions of control groups.
func TestRead(t *testing.T) {
	t.Parallel()
	network := &Network{Received: 1500, Sent: 700}
	proc := map[string]string{"proc/7/net/dev": dev}
	for name, tt := range map[string]struct {
		files map[string]string
		want  Usage
		known bool
	}{
		"version 2": {map[string]string{
			"cgroup/cgroup.controllers": "cpu io memory\n", "cgroup/a/c/cgroup.procs": "6\n7\n", "cgroup/a/c/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
			"cgroup/a/c/memory.current": "5000\n", "cgroup/a/c/memory.stat": "anon 1\ninactive_file 1000\n", "cgroup/a/c/memory.max": "9000\n",
			"cgroup/a/c/io.stat": "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=2 rios=1 wios=2\n",
		}, Usage{CPU: 2500 * time.Millisecond, Memory: 4000, MemoryLimit: 9000, IO: &IO{11, 22}, Network: network}, true},
		"version 2 without io and limit": {map[string]string{
			"cgroup/cgroup.controllers": "cpu memory\n", "cgroup/a/c/cgroup.procs": "7\n", "cgroup/a/c/cpu.stat": "usage_usec 1\n", "cgroup/a/c/memory.max": "max\n",
			"cgroup/a/c/memory.current": "10\n", "cgroup/a/c/memory.stat": "inactive_file 4096\n",
		}, Usage{CPU: time.Microsecond, Network: network}, true},
		"version 2, all ended": {map[string]string{"cgroup/cgroup.controllers": "cpu\n", "cgroup/a/c/cgroup.procs": ""}, Usage{}, false},
		"version 2, not there": {map[string]string{"cgroup/cgroup.controllers": "cpu\n"}, Usage{}, false},
		"version 1": {map[string]string{
			"cgroup/memory/a/c/cgroup.procs": "7\n", "cgroup/cpuacct/a/c/cpuacct.usage": "1500000000\n", "cgroup/memory/a/c/memory.usage_in_bytes": "5000\n",
			"cgroup/memory/a/c/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n", "cgroup/memory/a/c/memory.limit_in_bytes": "9223372036854771712\n",
			"cgroup/blkio/a/c/blkio.throttle.io_service_bytes_recursive": "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\n8:0 Total 30\n8:16 Read 5\nTotal 35\n",
		}, Usage{CPU: 1500 * time.Millisecond, Memory: 4500, IO: &IO{15, 20}, Network: network}, true},
		"network of the machine": {map[string]string{
			"cgroup/memory/a/c/cgroup.procs": "9\n", "cgroup/memory/a/c/memory.usage_in_bytes": "5000\n", "cgroup/memory/a/c/memory.limit_in_bytes": "6000\n",
		}, Usage{Memory: 5000, MemoryLimit: 6000}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write := func(path, content string) {
				t.Helper()
				path = filepath.Join(dir, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, files := range []map[string]string{proc, tt.files} {
				for path, content := range files {
					write(path, content)
				}
			}
			for pid, namespace := range map[string]string{"self": "net:[1]", "7": "net:[2]", "9": "net:[1]"} {
				if err := os.MkdirAll(filepath.Join(dir, "proc", pid, "ns"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(namespace, filepath.Join(dir, "proc", pid, "ns/net")); err != nil {
					t.Fatal(err)
				}
			}
			got, known := Source{filepath.Join(dir, "cgroup"), filepath.Join(dir, "proc")}.Read("/a/c")
			if known != tt.known || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("read %+v, io %+v, network %+v, known %t; want %+v, io %+v, known %t", got, got.IO, got.Network, known, tt.want, tt.want.IO, tt.known)
			}
		})
	}
}
