package compiler

import (
	"strings"
	"testing"
)

// What a profile says in words that runc does not know is refused at the import, as is what is
// not one profile of AppArmor.
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
		{"apparmor:./profile", "", `the archive has no file "profile"`},
		{"apparmor:../x", "", "leads out of the archive"},
		{"apparmor:p", "include <tunables/global>\nprofile x flags=(attach_disconnected) {\n  include <abstractions/base>\n  /{usr/,}bin/** ix, # }\n  owner @{PROC}/** r,\n}\n", ""},
		{"apparmor:p", "profile x {\n}\nprofile y {\n}\n", "p: line 3: want one profile"},
		{"apparmor:p", "/usr/bin/x {\n}\n", "p: line 1: want one profile, which begins with a line such as: profile meter"},
		{"apparmor:p", "profile x {\n  include \"/etc/shadow\"\n}\n", "p: line 2: a profile includes what the node has"},
		{"apparmor:p", "profile x {\n  #include /etc/shadow\n}\n", "p: line 2: a profile includes what the node has"},
		{"apparmor:p", "profile x {\n", "a brace is not closed"},
		{"apparmor:p", "}\n", "line 1: a brace is closed that is not open"},
		{"apparmor:p", "include <tunables/global>\n", "want one profile"},
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

// A profile of the archive reaches the node under a name of its own, and is attached to none of
// the node's programs.
func TestAppArmorOfTheArchive(t *testing.T) {
	t.Parallel()
	const profile = "include <tunables/global>\n\nprofile sshd /usr/sbin/{sshd,x} flags=(complain) {\n  file,\n  profile child {\n  }\n}\n"
	containers, _ := imported(t, "services:\n  a:\n    image: i\n    security_opt: ['apparmor:./p']\n", map[string]string{"p": profile})
	c := containers[0]
	if !strings.HasPrefix(c.AppArmor, "colony-") || len(c.AppArmor) != len("colony-")+16 {
		t.Errorf("the name is %q", c.AppArmor)
	}
	want := strings.Replace(profile, "profile sshd /usr/sbin/{sshd,x} flags=(complain) {", "profile "+c.AppArmor+" flags=(complain) {", 1)
	if c.AppArmorProfile != want {
		t.Errorf("the profile is\n%s\nwant\n%s", c.AppArmorProfile, want)
	}
}
