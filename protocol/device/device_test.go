package device

import (
	"testing"

	"github.com/colonyfleet/colony/protocol"
)

func TestMayUse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		patterns []string
		yes, no  []string
	}{
		{nil, []string{"", "plc", "plc/1"}, []string{"plc1", "PLC", "x"}},
		{[]string{"PLC*_b*", "fixed"}, []string{"PLC_b", "PLC7_bx", "fixed"}, []string{"", "plc", "PLC7", "fixed1", "xPLC_b"}},
		{[]string{"*"}, []string{"", "anything", "a.b", "home.x"}, []string{"gw-1.home", "home", "mes@home", "mes@*", ".home"}},
		{[]string{"a*a"}, []string{"aa", "aba"}, []string{"a", "ab"}},
	} {
		d := &protocol.DeviceAccount{User: "plc", ClientIDs: tt.patterns}
		for want, ids := range map[bool][]string{true: tt.yes, false: tt.no} {
			for _, id := range ids {
				if got := MayUse(d, "home", id); got != want {
					t.Errorf("client id %q with the patterns %q: %v, want %v", id, tt.patterns, got, want)
				}
			}
		}
	}
}

// TestValidate refuses what is wrong with one account and leaves the others; the fields are those of the site's file, whose
// reader has a test of each.
func TestValidate(t *testing.T) {
	t.Parallel()
	good := protocol.DeviceAccount{User: "a", Subscribe: []string{"#"}, SHA256: make([]byte, 32)}
	bad := good
	bad.User, bad.Publish = "b", []string{"x", "#/x"}
	got := Validate([]protocol.DeviceAccount{good, bad})
	if len(got) != 1 || got[0].Index != 1 || got[0].Field != "publish[1]" || got[0].Error() == "" {
		t.Errorf("%+v", got)
	}
}
