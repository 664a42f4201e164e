package semantics

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

// cdiFiles returns a directory with CDI files that stand for those of vendors. Each device is
// /dev/null of the node under another name, and a variable that names it.
func cdiFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for kind, names := range map[string][]string{
		"nvidia.com/gpu": {"all", "0", "1", "GPU-1"}, "amd.com/gpu": {"all"}, "example.org/null": {"one"},
	} {
		file := "cdiVersion: 0.5.0\nkind: " + kind + "\ncontainerEdits: {env: [KIND=" + kind + "]}\ndevices:\n"
		for _, name := range names {
			file += fmt.Sprintf("  - {name: %q, containerEdits: {env: [%q], deviceNodes: [{path: /dev/cdi-%s, hostPath: /dev/null}]}}\n", name, "DEVICE_"+name+"=yes", name)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(filepath.Dir(kind))+".yaml"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func deviceScenarios() []scenario {
	has := func(kind, name string) check {
		// What is written to /dev/null is not read again.
		return all(says("KIND="+kind, "env", "KIND"), says("DEVICE_"+name+"=yes", "env", "DEVICE_"+name), says("", "write", "/dev/cdi-"+name, "x"), empty("/dev/cdi-"+name))
	}
	lacks := func(name string) check { return fails("cat", "/dev/cdi-"+name) }
	reserved := func(request string) string {
		return a("deploy: {resources: {reservations: {devices: [" + request + "]}}}")
	}
	request := func(keys ...string) []string {
		for i := range keys {
			keys[i] = "deploy.resources.reservations.devices[0]." + keys[i]
		}
		return of(keys...)
	}
	return []scenario{
		{"CDI device", of("devices"), a("devices: ['example.org/null=one']"), nil, has("example.org/null", "one")},
		{"CDI device that the node lacks", of("devices"), a("devices: ['example.org/null=two']"), nil, failing(protocol.CreateFailed, "no CDI device example.org/null=two")},
		{"gpus", of("gpus"), a("gpus: all"), nil, has("nvidia.com/gpu", "all")},
		{"count of gpus", of("gpus[0].count"), a("gpus: [{count: 2}]"), nil, all(has("nvidia.com/gpu", "0"), has("nvidia.com/gpu", "1"), lacks("all"))},
		{"ids of gpus", of("gpus[0].device_ids"), a("gpus: [{device_ids: [GPU-1]}]"), nil, all(has("nvidia.com/gpu", "GPU-1"), lacks("all"))},
		{"driver of gpus", of("gpus[0].driver"), a("gpus: [{driver: amd}]"), nil, has("amd.com/gpu", "all")},
		{"reserved device", request("capabilities", "count"), reserved("{capabilities: [gpu], count: 1}"), nil, all(has("nvidia.com/gpu", "0"), lacks("all"))},
		{"ids of reserved devices", request("device_ids"), reserved("{capabilities: [gpu], driver: nvidia, device_ids: ['1']}"), nil, all(has("nvidia.com/gpu", "1"), lacks("all"))},
		{"driver of reserved devices", request("driver"), reserved("{capabilities: [gpu], driver: amd, count: all}"), nil, has("amd.com/gpu", "all")},
	}
}

// empty wants nothing to be read from a file of "a".
func empty(path string) check {
	return func(d *deployed) error {
		out, err := d.exec("a", "cat", path)
		if err == nil && out != "" {
			err = fmt.Errorf("%s has %q, want nothing", path, out)
		}
		return err
	}
}
