package compiler

import (
	"strings"
	"testing"

	"github.com/colonyfleet/colony/co/compiler/composearchive"
)

// Documents may name a later minor version of YAML, as tools of vendors write it; lines stay.
func TestVersionsOfYAML(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]string{
		"%YAML 1.1\n---\n": "", "# a comment\n%YAML 1.2\n---\n": "", "%YAML 1.2\r\n---\r\n": "",
		"%YAML 2.0\n---\n": "line 1: no YAML: found incompatible YAML document: want %YAML 1.1 or 1.2, or leave the line out",
	} {
		_, _, err := CheckArchive("web", composeArchive(t, head+"services: {a: {image: i:1}}\n", nil), nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", head, err, want)
		}
	}
	_, _, err := CheckArchive("web", composeArchive(t, "%YAML 1.2\n---\nservices: {a: {image: i:1, restart: often}}\n", nil), nil)
	if err == nil || !strings.Contains(err.Error(), "line 3: services.a.restart") {
		t.Errorf("%v, want line 3", err)
	}
}

// A number that is not finite is refused where a number is wanted, and is a text where one is.
func TestNumbersThatAreNotFinite(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"cpus: .inf": `services.a.cpus: ".inf": want a number`, "cpus: -.Inf": `services.a.cpus: "-.Inf": want a number`,
		"cpus: 'inf'": "services.a.cpus: +Inf is not finite: want a number", "cpus: 'NaN'": "services.a.cpus: NaN is not finite: want a number",
		"mem_limit: .inf": "services.a.mem_limit: ", "pids_limit: .nan": `services.a.pids_limit: ".nan": want a`, "oom_score_adj: .inf": `services.a.oom_score_adj: ".inf"`,
		"ports: [.inf]": "services.a.ports", "ports: [{target: .nan}]": `".nan": want a whole number`, "ulimits: {nofile: .inf}": `services.a.ulimits.nofile: ".inf"`, "shm_size: .inf": "services.a.shm_size: ",
		"healthcheck: {test: a, retries: .nan}": `services.a.healthcheck.retries: ".nan"`, "healthcheck: {test: a, interval: .inf}": `services.a.healthcheck.interval: ".inf"`,
		"deploy: {resources: {limits: {cpus: .inf}}}": "services.a.deploy", "deploy: {replicas: .inf}": `".inf": want a whole number`,
		"scale: .inf": `".inf": want a whole number`, "cpu_shares: .inf": `services.a.cpu_shares: ".inf"`,
		"environment: {A: .inf, B: .nan}": "", "labels: {A: -.inf}": "", "command: [.inf]": "", "x-own: .inf": "",
	} {
		_, _, err := CheckArchive("web", composeArchive(t, "services:\n  a:\n    image: i:1\n    "+key+"\n", nil), nil)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), "line 4: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "json")) {
			t.Errorf("%s: %v, want %q", key, err, want)
		}
	}
}

// What is refused says what takes its place.
func TestInsteadOfDrivers(t *testing.T) {
	t.Parallel()
	for driver, want := range map[string]string{
		"macvlan": "network_mode: host", "ipvlan": "publishes its ports", "host": "network_mode: host of a service", "none": "network_mode: none", "overlay": "publish ports", "weave": "want bridge",
	} {
		_, _, err := CheckArchive("web", composeArchive(t, "services:\n  a:\n    image: i:1\n    networks: [n]\nnetworks:\n  n:\n    driver: "+driver+"\n", nil), nil)
		if err == nil || !strings.Contains(err.Error(), "line 7: networks.n.driver: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", driver, err, want)
		}
	}
	for volume, want := range map[string]string{"v:/": "volumes: v:: a name of one letter", "v:/:ro": "volumes: v:/: a name of one letter", "v:/d:ro": "volumes: v:/d: a name of one letter"} {
		_, _, err := CheckArchive("web", composeArchive(t, "services:\n  a:\n    image: i:1\n    volumes: ['"+volume+"']\nvolumes: {v: }\n", nil), nil)
		if err == nil || !strings.Contains(err.Error(), "line 4: services.a."+want) {
			t.Errorf("%s: %v, want %q", volume, err, want)
		}
	}
}

// An archive that is too large says which file makes it so, and where else that belongs.
func TestLargeFilesAreNamed(t *testing.T) {
	t.Parallel()
	zeros := string(make([]byte, composearchive.MaxUnpacked+composearchive.MaxEntries*1024))
	_, _, err := CheckArchive("web", composeArchive(t, "services: {a: {image: i:1, volumes: ['./big:/big:ro']}}\n", map[string]string{"big/blob.bin": zeros, "big/small": "x"}), nil)
	if err == nil || !strings.Contains(err.Error(), `more than 16777216 bytes unpacked; the largest file is "app/big/blob.bin" with 17801216 bytes: put it into an image`) {
		t.Errorf("unpacked: %v", err)
	}
	_, _, err = CheckArchive("web", composeArchive(t, "services: {a: {image: i:1, volumes: ['./big:/big:ro']}}\n", map[string]string{"big/blob.bin": zeros[:MaxSpec], "big/small": "x"}), nil)
	if err == nil || !strings.Contains(err.Error(), "the limit is 524288; the largest file is that at /big/blob.bin of service a of component web with 524288 bytes: put it into an image") {
		t.Errorf("compiled: %v", err)
	}
	noise := make([]byte, composearchive.MaxBytes)
	state := uint32(1)
	for i := range noise {
		state ^= state << 13
		state ^= state >> 17
		state ^= state << 5
		noise[i] = byte(state)
	}
	_, _, err = CheckArchive("web", composeArchive(t, "services: {a: {image: i:1, volumes: ['./big:/big:ro']}}\n", map[string]string{"big/blob.bin": string(noise)}), nil)
	if err == nil || !strings.Contains(err.Error(), `bytes packed, the limit is 8388608; the largest file is "app/big/blob.bin" with 8388608 bytes`) {
		t.Errorf("packed: %v", err)
	}
}

// A read-only bind of what the archive does not have stays empty, unless a container writes there:
// that is said, with the bounds for which a file may be missing.
func TestReadOnlyBindOfNothing(t *testing.T) {
	t.Parallel()
	const want = `line 4: services.a.volumes: /m: the archive has no "models": it is a volume of the deployment, which stays empty, as nothing writes there: put the files in (an archive has at most 8388608 bytes, and 16777216 unpacked), or larger ones into an image, or into a directory of the node that an absolute path names`
	for _, c := range []struct{ other, want string }{
		{"", want},
		{"  b: {image: i:1, volumes: ['./models:/w:ro']}\n", want},
		{"  b: {image: i:1, volumes: ['./models:/w']}\n", `line 4: services.a.volumes: /m: the archive has no "models": it is a volume of the deployment` + "\n"},
	} {
		_, warnings, err := CheckArchive("web", composeArchive(t, "services:\n  a:\n    image: i:1\n    volumes: ['./models:/m:ro']\n"+c.other, nil), nil)
		if err != nil || !strings.Contains(strings.Join(warnings, "\n")+"\n", c.want) {
			t.Errorf("%q: %v, warnings %q", c.other, err, warnings)
		}
	}
}
