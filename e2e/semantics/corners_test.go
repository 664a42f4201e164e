package semantics

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// cornerScenarios are files as vendors write them, at the edge of what keys say. They leave no
// key out.
func cornerScenarios() []scenario {
	// Of this run alone: another front end makes the directories of binds.
	absent := filepath.Join(os.TempDir(), fmt.Sprintf("colony-semantics-%d", os.Getpid()), "absent")
	windows := func(text string) string { return strings.ReplaceAll(text, "\n", "\r\n") }
	return []scenario{
		{
			"whole node, read-only", nil, a("volumes: ['/:/rootfs:ro', '/proc:/host/proc:ro', '/sys:/host/sys:ro']"), nil,
			all(says("root:", "cat", "/rootfs/etc/passwd"), fails("write", "/rootfs/colony-semantics", "x"), fails("write", "/rootfs/dev/shm/colony-semantics", "x"), fails("write", "/host/proc/sys/kernel/panic", "0")),
		},
		{"limit of a privileged container", nil, a("privileged: true", "mem_limit: 64m"), nil, cgroup("memory.max", "67108864", "memory/memory.limit_in_bytes", "67108864")},
		{"name without regard to case", nil, a() + entry("My_Web", "command: [serve, '80', web]"), nil, all(says("web", "get", "http://My_Web/"), says("0 10.", "dig", "MY_WEB", "1"))},
		{"HOSTNAME", nil, a(), nil, says("HOSTNAME=a", "env", "HOSTNAME")},
		{"HOSTNAME of another", nil, a("network_mode: service:b") + entry("b", "hostname: teller"), nil, says("HOSTNAME=teller", "env", "HOSTNAME")},
		{"no time to stop", nil, a("stop_grace_period: 0s", "command: [linger, '3600']"), nil, all(logged("ready"), stopped(137))},
		{
			"line ends of Windows", nil, windows(a("env_file: a.env", "environment: {SHAPE: '${SHAPE}'}")),
			map[string]string{"a.env": windows("COLOUR=green\n"), ".env": windows("SHAPE=round\n")},
			all(exactly("SHAPE=round", "env", "SHAPE"), exactly("COLOUR=green", "env", "COLOUR")),
		},
		{
			"values of variables", nil, a("environment: {A: '${A:-x}', B: '${B-x}', C: '${C:+x}', D: $$D, E: '${N:-${M:-deep}}'}"),
			map[string]string{".env": "A=\nB=\nC=1\n"},
			all(exactly("A=x", "env", "A"), exactly("B=", "env", "B"), exactly("C=x", "env", "C"), exactly("D=$D", "env", "D"), exactly("E=deep", "env", "E")),
		},
		{"empty and missing values", nil, a("environment: [COLOUR=, SHAPE]"), nil, all(exactly("COLOUR=", "env", "COLOUR"), exactly("SHAPE=", "env", "SHAPE"))},
		{"command as a text", nil, a(`command: serve 80 "two  words"`), nil, says("two  words", "get", "http://127.0.0.1/")},
		{"volume of the image under a tmpfs", nil, a("image: volumes", "tmpfs: [/data]"), nil, all(says("/data tmpfs", "cat", "/proc/mounts"), fails("cat", "/data/seed"), writable("/data/file"))},
		{
			"mode of a tmpfs over a directory", nil, a("image: volumes", "user: '1000:1001'", "tmpfs: ['/data:mode=0700,uid=1000,gid=1001']"), nil,
			all(exactly("700 1000 1001", "stat", "/data"), writable("/data/file")),
		},
		{"volume of the image, read-only root", nil, a("image: volumes", "read_only: true", "user: '0'"), nil, all(says("seed", "cat", "/data/seed"), writable("/data/file"), fails("write", "/file", "x"))},
		{"working_dir that the image lacks", nil, a("working_dir: /made/anew"), nil, says("/made/anew", "id")},
		{"user that the image lacks", nil, a("user: nobody-there"), nil, failing(protocol.CreateFailed, `user "nobody-there"`)},
		{"bind that the node lacks", nil, a("volumes: ['" + absent + ":/x']"), nil, failing(protocol.CreateFailed, "the node has no "+absent)},
		{"device that the node lacks", nil, a("devices: [/dev/serial/by-id/none:/dev/ttyUSB0]"), nil, failing(protocol.CreateFailed, "the node has no device /dev/serial/by-id/none")},
		{"init and tty", nil, a("init: true", "tty: true", "command: [isatty, /out]"), nil, all(says("true", "cat", "/out"), says("docker-init", "cat", "/proc/1/cmdline"))},
		{"address of IPv6 in extra_hosts", nil, a("extra_hosts: ['six:::1', 'seven=[::1]']"), nil, says("::1\tsix", "cat", "/etc/hosts")},
		{"swap without a bound", nil, a("mem_limit: 64m", "memswap_limit: -1"), nil, cgroup("memory.swap.max", "max", "memory/memory.memsw.limit_in_bytes", "9223372036854771712")},
		{
			"several networks of one service", nil, a("networks: [one, two]") + entry("web", "command: [serve, '80', web]", "networks: [two, three]") + "networks: {one: {}, two: {internal: true}, three: {}}\n", nil,
			says("web", "get", "http://web/"),
		},
		{
			"completed before", nil, a("depends_on: {b: {condition: service_completed_successfully}}") + entry("b", "command: [exit, '3', no migration]"), nil,
			failing(protocol.StartFailed, "no migration"),
		},
		{"as often as it fails", nil, a("restart: 'on-failure:2'", "command: [exit, '1', done]"), nil, failing(protocol.CrashLoop, "its restart policy allows no further start")},
		{"ended with success", nil, a("restart: on-failure", "command: [exit, '0', done]"), nil, all(installed, status("an end", func(s engine.Status) bool { return s.State == engine.Exited && s.ExitCode == 0 }))},
	}
}

// exactly wants the toolbox to print one line, and nothing else, in "a".
func exactly(want string, args ...string) check {
	return func(d *deployed) error {
		out, err := d.exec("a", args...)
		if err == nil && out != want {
			err = fmt.Errorf("%q prints %q, want %q", args, out, want)
		}
		return err
	}
}
