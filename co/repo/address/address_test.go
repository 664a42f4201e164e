package address_test

import (
	"testing"

	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/protocol"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, remote := range []string{
		"", "--upload-pack=touch /tmp/x", "ext::sh -c id", "fd::0", "ftp://x/y", "ssh://-oProxyCommand=id/x", "https://", "a\nb", "https://u:p%zz@h/",
	} {
		if err := address.Check(remote); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("address.Check(%q) = %v, want invalid", remote, err)
		}
	}
	for _, remote := range []string{"/srv/x.git", "./x", "https://u:p@host/x.git", "git@host:x.git", "ssh://git@host:22/x", "file:///x"} {
		if err := address.Check(remote); err != nil {
			t.Errorf("address.Check(%q) = %v", remote, err)
		}
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	for s, want := range map[string][2]bool{
		"/srv/x.git": {false, false}, "./x": {false, false}, "git@host:x.git": {true, true}, "ssh://git@host/x": {true, false},
		"https://u@host:x/y": {true, false}, "git@host:": {false, false},
	} {
		if got := [2]bool{address.IsRemote(s), address.IsSCP(s)}; got != want {
			t.Errorf("%s: IsRemote, IsSCP = %v, want %v", s, got, want)
		}
	}
	if got := address.Redact("fetch https://u:p@host/x failed"); got != "fetch https://u:***@host/x failed" {
		t.Error(got)
	}
}
