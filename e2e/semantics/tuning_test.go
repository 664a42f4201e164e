package semantics

// tuningScenarios show keys that say how the kernel treats a container, and the owner of its files.
func tuningScenarios() []scenario {
	secret := func(lines ...string) string { return a(lines...) + "secrets: {f: {file: ./f.txt}}\n" }
	config := func(lines ...string) string { return a(lines...) + "configs: {f: {file: ./f.txt}}\n" }
	files := map[string]string{"f.txt": "owned"}
	return []scenario{
		{"oom_score_adj", of("oom_score_adj"), a("oom_score_adj: 250"), nil, says("250", "cat", "/proc/1/oom_score_adj")},
		{"cpu_shares", of("cpu_shares"), a("cpu_shares: 2"), nil, cgroup("cpu.weight", "1", "cpu/cpu.shares", "2")},
		{"cpuset", of("cpuset"), a("cpuset: '0'"), nil, cgroup("cpuset.cpus", "0", "cpuset/cpuset.cpus", "0")},
		{"domainname", of("domainname"), a("domainname: plant.example"), nil, says("plant.example", "cat", "/proc/sys/kernel/domainname")},
		{"annotations", of("annotations"), a("annotations: {example.org/line: '3'}"), nil, annotated("example.org/line", "3")},
		{
			"owner of a secret", of("secrets[0].uid"), secret("user: '1000:1001'", "secrets: [{source: f, uid: '1000', mode: 0400}]"), files,
			says("owned", "cat", "/run/secrets/f"),
		},
		{
			"group of a secret", of("secrets[0].gid"), secret("user: '1000:1001'", "secrets: [{source: f, gid: '1001', mode: 0040}]"), files,
			says("owned", "cat", "/run/secrets/f"),
		},
		{
			"owner of a config", of("configs[0].uid"), config("user: '1000:1001'", "configs: [{source: f, uid: '1000', mode: 0400}]"), files,
			says("owned", "cat", "/f"),
		},
		{
			"group of a config", of("configs[0].gid"), config("user: '1000:1001'", "configs: [{source: f, gid: '1001', mode: 0040}]"), files,
			says("owned", "cat", "/f"),
		},
	}
}
