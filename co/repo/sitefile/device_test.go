package sitefile_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/repo/sitefile"
)

const (
	sum  = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
	hash = "$2a$04$7bkGE3qMnT0cHZnUn2aCx.wGZ0ZrDKM63DA6DDuGyoO5l7Y9kJ4iG"
)

// TestDevices adds accounts to a file and removes them, and leaves everything else in it as it is.
func TestDevices(t *testing.T) {
	t.Parallel()
	before := "# of the plant\n" + string(example(t))
	plc := sitefile.Device{User: "plc-7", ClientIDs: []string{"PLC7*"}, Publish: []string{"line1/#"}, Password: sitefile.Password{SHA256: sum}}
	scada := sitefile.Device{User: "SCADA", Subscribe: []string{"#"}, Password: sitefile.Password{Bcrypt: hash}}
	after := func(raw []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	raw := after(sitefile.SetDevice("berlin", []byte(before), plc))
	raw = after(sitefile.SetDevice("berlin", raw, scada))
	plc.ClientIDs = nil
	raw = after(sitefile.SetDevice("berlin", raw, plc))
	got, err := sitefile.Parse("berlin", raw)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]sitefile.Device{scada, plc}, sitefile.Devices(got.Devices)); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
	want, err := sitefile.Parse("berlin", []byte(before))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Rules, got.Rules); diff != "" || !strings.HasPrefix(string(raw), "# of the plant\n") || strings.Count(string(raw), "#") < strings.Count(before, "#") {
		t.Errorf("the rules, or their comments, have changed:\n%s\n%s", diff, raw)
	}
	if _, err := sitefile.RemoveDevice("berlin", raw, "none"); !errors.Is(err, sitefile.ErrNoDevice) {
		t.Errorf("removed an account that is not there: %v", err)
	}
	raw = after(sitefile.RemoveDevice("berlin", raw, "plc-7"))
	raw = after(sitefile.RemoveDevice("berlin", raw, "SCADA"))
	if strings.Contains(string(raw), "broker") {
		t.Errorf("a part without accounts is left:\n%s", raw)
	}
	raw = after(sitefile.SetDevice("berlin", nil, plc))
	if got, err := sitefile.Parse("berlin", raw); err != nil || len(got.Devices) != 1 {
		t.Errorf("a file that was not there: %v\n%s", err, raw)
	}
	if _, err := sitefile.SetDevice("berlin", []byte("spec: {"), plc); err == nil || !strings.Contains(err.Error(), "corrected first") {
		t.Errorf("an account in a bad file: %v", err)
	}
	if _, err := sitefile.SetDevice("berlin", nil, sitefile.Device{User: "a@b"}); err == nil || !strings.Contains(err.Error(), "devices[0]") {
		t.Errorf("a bad account: %v", err)
	}
}

// TestDeviceFaults names each fault with its line.
func TestDeviceFaults(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: colony/v1\nkind: Site\nmetadata: {id: berlin}\nspec:\n  broker:\n    devices:\n"
	good := "      - {user: a, password: {sha256: " + sum + "}}\n"
	for name, tt := range map[string]struct{ item, want string }{
		"user twice":   {good + good, `line 8: spec.broker.devices[1].user: "a" is that of account 1`},
		"user":         {strings.Replace(good, "a,", "n1.berlin,", 1), "line 7: spec.broker.devices[0].user: "},
		"no password":  {"      - {user: a}\n", "spec.broker.devices[0].password: required"},
		"two":          {strings.Replace(good, "}}", ", bcrypt: x}}", 1), "spec.broker.devices[0].password: want either"},
		"hex":          {strings.Replace(good, "2b", "zz", 1), "want 64 hexadecimal digits"},
		"short":        {strings.Replace(good, sum, `"00"`, 1), "spec.broker.devices[0].password.sha256: 1 bytes"},
		"bcrypt":       {"      - {user: a, password: {bcrypt: secret}}\n", "spec.broker.devices[0].password.bcrypt: want a bcrypt hash"},
		"costly":       {"      - {user: a, password: {bcrypt: " + strings.Replace(hash, "04", "20", 1) + "}}\n", "of a cost from 04 to 14"},
		"filter":       {strings.Replace(good, "user: a", "user: a, publish: [a/#/b]", 1), "line 7: spec.broker.devices[0].publish[0]: "},
		"system topic": {strings.Replace(good, "user: a", "user: a, subscribe: [$SYS/#]", 1), "spec.broker.devices[0].subscribe[0]: "},
		"client id":    {strings.Replace(good, "user: a", `user: a, clientIDs: [x, "mes@berlin"]`, 1), "spec.broker.devices[0].clientIDs[1]: "},
		"too many":     {strings.Replace(good, "user: a", "user: a, publish: ["+strings.Repeat("x,", 101)+"]", 1), "an account has at most 100"},
		"unknown key":  {strings.Replace(good, "user: a", "user: a, secret: x", 1), "spec.broker.devices[0].secret: unknown key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := sitefile.Parse("berlin", []byte(head+tt.item)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	if got, err := sitefile.Parse("berlin", []byte(head+good)); err != nil || got.Devices[0].User != "a" || len(got.Devices[0].SHA256) != 32 {
		t.Errorf("%+v, %v", got, err)
	}
}
