package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/colonyfleet/colony/co/api/sitedata"
	"github.com/colonyfleet/colony/co/repo/sitefile"
)

// TestSiteDevice adds, lists and removes device accounts. What is sent has no password, and the one that was
// made fits what was sent.
func TestSiteDevice(t *testing.T) {
	t.Parallel()
	var sent sitefile.Device
	var raw string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/api/v1/sites/home/devices/plc-7":
			var body json.RawMessage
			sent = sitefile.Device{}
			if json.NewDecoder(r.Body).Decode(&body) != nil || json.Unmarshal(body, &sent) != nil {
				t.Errorf("what was sent is not JSON: %s", body)
			}
			raw = string(body)
			w.WriteHeader(http.StatusNoContent)
		case r.Method == http.MethodDelete && r.URL.Path == "/api/v1/sites/home/devices/plc-7":
			w.WriteHeader(http.StatusNoContent)
		case r.Method == http.MethodGet && r.URL.Path == "/api/v1/sites/home/devices":
			_ = json.NewEncoder(w).Encode(sitedata.Devices{Site: "home", Problem: "line 1", Devices: []sitefile.Device{
				{User: "plc-7", ClientIDs: []string{"PLC7*", "x"}, Publish: []string{"a/#"}, Password: sitefile.Password{SHA256: "00"}},
				{User: "scada", Subscribe: []string{"#"}, Password: sitefile.Password{Bcrypt: "$2b$"}},
			}})
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	do := func(args ...string) string {
		t.Helper()
		stdout, stderr, code := run(t, s.URL, append([]string{"site", "device"}, args...)...)
		if code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, stderr)
		}
		return stdout
	}
	out := do("add", "home", "plc-7", "--client-id", "PLC7*", "--publish", "a/#", "--subscribe", "b,c/#")
	secret := regexp.MustCompile(`(?m)^password: (\S+)$`).FindStringSubmatch(out)
	if secret == nil || len(secret[1]) != 22 || strings.Contains(raw, secret[1]) {
		t.Fatalf("no password of 128 bits, or it was sent:\n%s%s", out, raw)
	}
	if sum := sha256.Sum256([]byte(secret[1])); sent.Password.SHA256 != hex.EncodeToString(sum[:]) || sent.Subscribe[0] != "b,c/#" || sent.ClientIDs[0] != "PLC7*" {
		t.Errorf("sent %+v", sent)
	}
	again := do("add", "home", "plc-7", "-o", "json")
	var made struct {
		Password string `json:"password"`
	}
	if err := json.Unmarshal([]byte(again), &made); err != nil || len(made.Password) != 22 || made.Password == secret[1] {
		t.Errorf("%+v, %v: want another password", made, err)
	}
	file := filepath.Join(t.TempDir(), "password")
	for content, code := range map[string]int{"a chosen one\n": 0, "short\n": exitUsage} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		sent = sitefile.Device{}
		stdout, stderr, got := run(t, s.URL, "site", "device", "add", "home", "plc-7", "--password-file", file)
		if got != code || strings.Contains(stdout, "password:") {
			t.Errorf("%q: exit code %d, %s%s", content, got, stdout, stderr)
		}
		if code == 0 && bcrypt.CompareHashAndPassword([]byte(sent.Password.Bcrypt), []byte("a chosen one")) != nil {
			t.Errorf("sent %+v", sent)
		}
	}
	if out := squeeze(do("list", "home")); !strings.Contains(out, "plc-7 PLC7* x a/# - generated") || !strings.Contains(out, "scada - - # chosen") {
		t.Errorf("list:\n%s", out)
	}
	if out := do("remove", "home", "plc-7"); out != "home: device account plc-7 removed from the deployments repo\n" {
		t.Error(out)
	}
	if _, _, code := run(t, s.URL, "site", "device", "remove", "home", "none"); code != exitNotFound {
		t.Errorf("exit code %d", code)
	}
}
