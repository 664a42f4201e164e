package compiler

import (
	"strings"
	"testing"
)

// What a profile says in words that runc does not know is refused at the import, as is a
// profile of AppArmor that is a file.
func TestSecurityProfiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ option, profile, want string }{
		{"seccomp:./p", `{"defaultAction": "SCMP_ACT_ALLOWW"}`, `defaultAction "SCMP_ACT_ALLOWW": want one of [SCMP_ACT_ALLOW`},
		{"seccomp:./p", `{"defaultAction": "SCMP_ACT_NOTIFY"}`, `defaultAction "SCMP_ACT_NOTIFY": want`},
		{"seccomp:./p", `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["amd64"]}`, `architecture "amd64": want`},
		{"seccomp:./p", `{"defaultAction": "SCMP_ACT_ALLOW", "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["x"]}]}`, `architecture "x": want`},
		{"seccomp:./p", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "DENY"}]}`, `syscalls[0].action "DENY": want`},
		{"seccomp:./p", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO", "args": [{"op": "=="}]}]}`, `syscalls[0].args: op "==": want`},
		{"seccomp:./p", `{"defaultAction": "SCMP_ACT_ALLOW", "archMap": [{"architecture": "SCMP_ARCH_X86_64"}], "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO", "args": [{"op": "SCMP_CMP_EQ"}]}]}`, ""},
		{"apparmor:./profile", "", "it names a file, and profiles are loaded on the node"},
		{"apparmor:p", "profile x {}", "it names a file"},
		{"apparmor:../x", "", "it names a file"},
		{"apparmor:/usr/bin/x", "", ""},
		{"apparmor:docker-default", "", ""},
	} {
		compose := "services:\n  a:\n    image: i\n    security_opt: ['" + c.option + "']\n"
		files := map[string]string{"other": ""}
		if c.profile != "" {
			files["p"] = c.profile
		}
		_, warnings, err := CheckArchive("web", composeArchive(t, compose, files), nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), "line 4: services.a.security_opt: ") || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %s: %v, want %q", c.option, c.profile, err, c.want)
		}
		if warned := strings.Contains(strings.Join(warnings, "\n"), "runs unconfined by AppArmor"); warned != (c.option == "apparmor:docker-default") {
			t.Errorf("%s: warnings %q", c.option, warnings)
		}
	}
}
