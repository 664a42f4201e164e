package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker/admin"
)

// TestSiteBroker lists the clients of a broker, shows one, and disconnects it.
func TestSiteBroker(t *testing.T) {
	t.Parallel()
	since := time.Now().Add(-3*time.Minute - time.Second)
	connected := admin.Client{
		Client: "PLC_1", Identity: "plc", Subscriptions: 2, Connection: &admin.Connection{Since: since, Listener: "mqtt", Remote: "10.0.0.7:1", MQTT: "3.1.1", Sent: 5},
	}
	away := admin.Client{Client: "mes@home", Identity: "mes@home", Subscriptions: 1, Session: &admin.Session{ExpirySeconds: 1<<32 - 1, Away: &since, Messages: 7, Bytes: 2048}}
	var deleted []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := admin.List{Clients: []admin.Client{connected, away}, Total: 3}
		switch client := r.FormValue("client"); {
		case r.URL.Path != admin.Path || client == "none":
			w.WriteHeader(http.StatusNotFound)
			return
		case r.Method == http.MethodDelete:
			deleted = append(deleted, client+" "+r.FormValue("session"))
			w.WriteHeader(http.StatusNoContent)
			return
		case client == "PLC_1":
			out.Clients = out.Clients[:1]
		case client == "mes@home":
			out.Clients = out.Clients[1:]
		}
		_ = json.NewEncoder(w).Encode(out)
	}))
	t.Cleanup(s.Close)
	for _, step := range []struct {
		args string
		code int
		want []string
	}{
		{"clients", 0, []string{"CLIENT USER CONNECTED MQTT FROM SUBSCRIPTIONS STORED BYTES", "PLC_1 plc 3m 3.1.1 10.0.0.7:1 2 - -", "mes@home mes@home away - - 1 7 2.0 KiB", "2 of 3 clients"}},
		{"client PLC_1", 0, []string{"plc", "3.1.1", "10.0.0.7:1"}},
		{"client mes@home", 0, []string{"never", "7", "2.0 KiB"}},
		{"client none", exitNotFound, nil},
		{"kick PLC_1", 0, []string{"PLC_1: disconnected"}},
		{"kick mes@home --session", 0, []string{"mes@home: disconnected; nothing is stored of it now"}},
		{"kick mes@home --session -o json", 0, []string{`"session": true`}},
		{"kick none", exitNotFound, nil},
	} {
		stdout, stderr, code := run(t, "http://127.0.0.1:1", append([]string{"site", "broker", "--at", s.URL}, strings.Fields(step.args)...)...)
		if code != step.code {
			t.Errorf("%s: exit code %d, %s", step.args, code, stderr)
		}
		for _, want := range step.want {
			if !strings.Contains(squeeze(stdout+stderr), want) {
				t.Errorf("%s: no %q in\n%s%s", step.args, want, stdout, stderr)
			}
		}
	}
	if got := strings.Join(deleted, ","); got != "PLC_1 false,mes@home true,mes@home true" {
		t.Errorf("disconnected %s", got)
	}
}
