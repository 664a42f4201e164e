package devices

import (
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/protocol"
)

func generated(user, password string) protocol.DeviceAccount {
	sum := sha256.Sum256([]byte(password))
	return protocol.DeviceAccount{User: user, SHA256: sum[:], Publish: []string{"line1/plc/#", "colony/v1/home/data/line1/#"}, Subscribe: []string{"line1/+/orders", "colony/#"}}
}

func chosen(t *testing.T, user, password string) protocol.DeviceAccount {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return protocol.DeviceAccount{User: user, Bcrypt: string(hash)}
}

func connect(a *Access, user, clientID, password string) (access.Identity, error) {
	return a.Connect(access.ConnectInfo{Username: user, ClientID: clientID, Password: []byte(password)})
}

func TestConnect(t *testing.T) {
	t.Parallel()
	a := New("home")
	scada := chosen(t, "scada", "in the vault")
	scada.ClientIDs = []string{"WinCC_*"}
	if outdated, faults := a.Set([]protocol.DeviceAccount{generated("plc", "secret"), scada, {User: "no password"}}); len(outdated) != 0 || len(faults) != 2 {
		t.Errorf("outdated %v, faults %v", outdated, faults)
	}
	for _, tt := range []struct {
		user, client, password, want string // "" is success
	}{
		{"plc", "plc", "secret", ""},
		{"plc", "", "secret", ""},
		{"plc", "plc", "Secret", "wrong password"},
		{"plc", "plc", "", "wrong password"},
		{"plc", "PLC_1", "secret", "want plc, or one that begins with plc/"},
		{"scada", "WinCC_1", "in the vault", ""},
		{"scada", "WinCC_1", "in the vault", ""}, // from memory
		{"scada", "WinCC_1", "in the Vault", "wrong password"},
		{"scada", "scada", "in the vault", "want WinCC_*"},
		{"browser", "browser", "x", "colony site device add home browser"},
		{"mes@home", "mes@home", "", ""},
		{"gw-1.home", "gw-1.home", "", ""},
		{"mes@away", "mes@away", "", "belongs to site away"},
	} {
		id, err := connect(a, tt.user, tt.client, tt.password)
		switch {
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%+v: %v", tt, err)
		case tt.want == "" && (err != nil || id.Name != tt.user || id.Device != !strings.ContainsAny(tt.user, "@.")):
			t.Errorf("%+v: %+v, %v", tt, id, err)
		}
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	a := New("home")
	a.Set([]protocol.DeviceAccount{generated("plc", "secret")})
	id, err := connect(a, "plc", "plc", "secret")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"line1/plc": true, "line1/plc/x": true, "line1/x": false, "colony/v1/home/data/line1/x": true, "colony/v1/home/data/line2": false,
		"colony/v1/home/node/gw-1/status": false, "$SYS/x": false, "line1/plc/#": false,
	} {
		if got := a.MayPublish(id, name); got != want {
			t.Errorf("publish to %s: %v, want %v", name, got, want)
		}
	}
	for filter, want := range map[string]bool{
		"line1/plc/orders": true, "line1/plc/other": false, "#": true, "+/+": true, "$SYS/#": true, "$SYS/broker/uptime": false,
		"colony/v1/home/data/x": true, "colony/v1/home/node/gw-1/desired": false,
	} {
		if got := a.MaySubscribe(id, filter); got != want {
			t.Errorf("subscribe to, or receive, %s: %v, want %v", filter, got, want)
		}
	}
	if why := a.Refusal(id, "line2/x"); !strings.Contains(why, "line1/+/orders") || !strings.Contains(why, "--subscribe") {
		t.Errorf("the refusal says %q", why)
	}
	if why := a.PublishRefusal(id, "line2/x"); !strings.Contains(why, "line1/plc/#") || !strings.Contains(why, "--publish") {
		t.Errorf("the refusal says %q", why)
	}
	own := access.Identity{Name: "mes@home", Site: "home", Client: "mes"}
	if a.MaySubscribe(own, "#") || !a.MaySubscribe(own, "x/#") || !strings.Contains(a.Refusal(own, "#"), "literal level") {
		t.Error("Colony's own identities have other rules than before")
	}
	if why := a.PublishRefusal(own, "colony/x"); !strings.Contains(why, "local topics") {
		t.Errorf("the refusal says %q", why)
	}
	if !a.MayPublish(own, "x") || a.MayPublish(own, "colony/x") {
		t.Error("Colony's own identities may publish something else than before")
	}
}

// TestChanges has effect on what connected devices may do, and names those that are to be disconnected.
func TestChanges(t *testing.T) {
	t.Parallel()
	a := New("home")
	list := []protocol.DeviceAccount{generated("plc", "1"), generated("hmi", "2"), chosen(t, "scada", "chosen one"), generated("old", "4")}
	a.Set(list)
	if _, err := connect(a, "scada", "scada", "chosen one"); err != nil {
		t.Fatal(err)
	}
	id, err := connect(a, "plc", "plc", "1")
	if err != nil {
		t.Fatal(err)
	}
	next := slices.Clone(list[:3])
	next[0].Publish = []string{"other/#"}
	next[1] = generated("hmi", "new")
	outdated, _ := a.Set(next)
	slices.Sort(outdated)
	if !slices.Equal(outdated, []string{"hmi", "old"}) {
		t.Errorf("outdated are %v, want hmi and old", outdated)
	}
	if a.MayPublish(id, "line1/plc") || !a.MayPublish(id, "other/x") {
		t.Error("what a connected device may publish has not changed")
	}
	if !a.account("scada").has(sha256.Sum256([]byte("chosen one"))) {
		t.Error("a password that was verified is verified again")
	}
	a.Set(nil)
	if a.MayPublish(id, "other/x") || !strings.Contains(a.PublishRefusal(id, "other/x"), "removed") || a.MaySubscribe(id, "#") || a.Refusal(id, "#") == "" {
		t.Error("an account that was removed may still do something")
	}
}

// TestStorm has many devices connect at once: two passwords are verified at a time, those beyond the queue are
// to try again, and who was verified once is not verified again.
func TestStorm(t *testing.T) {
	t.Parallel()
	a := New("home")
	a.Set([]protocol.DeviceAccount{chosen(t, "scada", "chosen one")})
	for range verifyAtOnce { // as if passwords were being verified
		a.waiting.Add(1)
		a.verify <- struct{}{}
	}
	const clients = waitForVerify + 10
	results := make(chan error, clients)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			_, err := connect(a, "scada", "scada", "chosen one")
			results <- err
		})
	}
	for range clients - waitForVerify { // the others wait
		if err := <-results; protocol.KindOf(err) != protocol.Unavailable {
			t.Errorf("a client too many: %v, want one to try again", err)
		}
	}
	for range verifyAtOnce {
		<-a.verify
		a.waiting.Add(-1)
	}
	all.Wait()
	for range waitForVerify {
		if err := <-results; err != nil {
			t.Errorf("a client that waited: %v", err)
		}
	}
	if n := a.waiting.Load(); n != 0 {
		t.Errorf("%d clients count as waiting", n)
	}
}
