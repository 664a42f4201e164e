package devices

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/turns"
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
	if change, faults := a.Set([]protocol.DeviceAccount{generated("plc", "secret"), scada, {User: "no password"}}); len(change.Outdated) != 0 || !change.Ids || len(faults) != 2 {
		t.Errorf("%+v, faults %v", change, faults)
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

// A client without a password cannot find out accounts: a user without one, and one whose password is generated, are refused as one with a
// chosen password is, after as long, whatever the client id.
func TestNamesStaySecret(t *testing.T) {
	t.Parallel()
	accounts := []protocol.DeviceAccount{chosen(t, "scada", "one"), chosen(t, "hmi", "another"), generated("plc", "secret")}
	synctest.Test(t, func(t *testing.T) {
		const takes = 64 * time.Millisecond
		a := New("home")
		compare := a.compare
		a.compare = func(hash, password []byte) error {
			time.Sleep(takes)
			return compare(hash, password)
		}
		refused := func(want time.Duration) {
			t.Helper()
			for i, user := range []string{"nobody", "scada", "hmi", "plc", "nobody-else"} {
				for j, client := range []string{user, "", "of another one"} {
					begun := time.Now()
					_, err := a.Connect(access.ConnectInfo{Username: user, ClientID: client, Password: []byte("guess"), Remote: fmt.Sprintf("192.0.2.%d:1", 10*i+j)})
					bad, ok := errors.AsType[*access.BadCredentials](err)
					if !ok || protocol.KindOf(err) != protocol.Denied || strings.Contains(bad.Shown(), user) {
						t.Errorf("%s with the client id %q: %v, want it denied without a word of the account", user, client, err)
					}
					if took := time.Since(begun); took != want {
						t.Errorf("%s with the client id %q: refused after %s, want %s", user, client, took, want)
					}
				}
			}
		}
		refused(0) // no account has a chosen password
		a.Set(accounts)
		refused(takes)
		begun := time.Now()
		if _, err := connect(a, "plc", "plc", "secret"); err != nil || time.Since(begun) > 0 {
			t.Errorf("a generated password: %v, after %s, want no wait", err, time.Since(begun))
		}
		if _, err := connect(a, "nobody", "nobody", "one"); err == nil {
			t.Error("a user without an account connects with the password of another one")
		}
	})
}

// Users without an account take no turn, however many there are: a device gets its turn at once, and they are refused while all turns are taken.
func TestStrangersTakeNoTurns(t *testing.T) {
	t.Parallel()
	a := New("home")
	var compared atomic.Int64
	compare := a.compare
	a.compare = func(hash, password []byte) error {
		compared.Add(1)
		return compare(hash, password)
	}
	a.Set([]protocol.DeviceAccount{chosen(t, "scada", "chosen one"), generated("plc", "secret")})
	var ends []func(bool)
	for range verifyAtOnce { // as if passwords were being verified
		ends = append(ends, a.verify.Take(turns.Source{}))
	}
	var all sync.WaitGroup
	for i := range 10 * waitForVerify {
		all.Go(func() {
			_, err := a.Connect(access.ConnectInfo{Username: fmt.Sprint("nobody-", i), Password: []byte("guess"), Remote: "192.0.2.1:1"})
			if protocol.KindOf(err) != protocol.Denied {
				t.Errorf("a user without an account: %v, want it denied", err)
			}
		})
	}
	all.Go(func() {
		if _, err := a.Connect(access.ConnectInfo{Username: "plc", Password: []byte("guess"), Remote: "192.0.2.1:1"}); protocol.KindOf(err) != protocol.Denied {
			t.Errorf("a wrong password that was generated: %v, want it denied", err)
		}
	})
	all.Wait()
	for _, end := range ends {
		end(false)
	}
	if _, err := a.Connect(access.ConnectInfo{Username: "scada", ClientID: "scada", Password: []byte("chosen one"), Remote: "192.0.2.1:1"}); err != nil {
		t.Errorf("a device at their address: %v", err)
	}
	if n := compared.Load(); n != 2 {
		t.Errorf("%d passwords compared, want one to know how long it takes, and that of the device", n)
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
	change, _ := a.Set(next)
	slices.Sort(change.Outdated)
	if !slices.Equal(change.Outdated, []string{"hmi", "old"}) || !change.Ids {
		t.Errorf("%+v, want hmi and old outdated, and other client ids", change)
	}
	if change, _ := a.Set(next); len(change.Outdated) > 0 || change.Ids {
		t.Errorf("the same accounts again: %+v", change)
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

// TestClientIDs checks that a pattern matches no client id that another account names, and which sessions may stay: those of
// accounts that were removed, or that may not have the client id any more, may not.
func TestClientIDs(t *testing.T) {
	t.Parallel()
	a := New("home")
	all, fixed, plc := generated("all", "1"), generated("fixed", "2"), generated("plc", "3")
	all.ClientIDs, fixed.ClientIDs = []string{"*"}, []string{"PLC_1", "PLC_2*"}
	a.Set([]protocol.DeviceAccount{all})
	for _, id := range []string{"PLC_1", "plc", "plc/1", "other"} {
		if _, err := connect(a, "all", id, "1"); err != nil || !a.MayHold("all", id) {
			t.Errorf("%s, which no account names: %v", id, err)
		}
	}
	if change, _ := a.Set([]protocol.DeviceAccount{all, fixed, plc, {User: "faulty"}}); !change.Ids || len(change.Outdated) > 0 {
		t.Errorf("%+v, want other client ids alone", change)
	}
	for _, tt := range []struct {
		user, id, password string
		want               bool
	}{
		{"all", "PLC_1", "1", false},
		{"all", "plc", "1", false},
		{"all", "plc/1", "1", false},
		{"all", "PLC_2x", "1", true}, // two patterns
		{"all", "other", "1", true},
		{"all", "", "1", true},
		{"fixed", "PLC_1", "2", true},
		{"plc", "plc", "3", true},
		{"plc", "plc/1", "3", true},
	} {
		if _, err := connect(a, tt.user, tt.id, tt.password); (err == nil) != tt.want || protocol.KindOf(err) != protocol.Invalid && !tt.want {
			t.Errorf("%s with the client id %q: %v, want it to connect: %v", tt.user, tt.id, err, tt.want)
		}
		if got := a.MayHold(tt.user, tt.id); got != tt.want {
			t.Errorf("%s has a session of %q: %v, want %v", tt.user, tt.id, got, tt.want)
		}
	}
	for user, want := range map[string]bool{"removed": false, "faulty": true, "mes@home": true, "gw-1.home": true} {
		if got := a.MayHold(user, user); got != want {
			t.Errorf("a session of %s stays: %v, want %v", user, got, want)
		}
	}
}

// TestStorm has many devices connect at once: two passwords are verified at a time, those beyond the queue are to try
// again, and a client that was verified once is not verified again. One that guesses passwords is refused before the
// others.
func TestStorm(t *testing.T) {
	t.Parallel()
	a := New("home")
	a.Set([]protocol.DeviceAccount{chosen(t, "scada", "chosen one")})
	from := func(address, password string) error {
		_, err := a.Connect(access.ConnectInfo{Username: "scada", ClientID: "scada", Password: []byte(password), Remote: address + ":1"})
		return err
	}
	if err := from("192.0.2.9", "guess"); protocol.KindOf(err) != protocol.Denied {
		t.Fatal(err)
	}
	var ends []func(bool)
	for range verifyAtOnce { // as if passwords were being verified
		ends = append(ends, a.verify.Take(turns.Source{}))
	}
	const clients = waitForVerify + 10
	var all sync.WaitGroup
	guesses, results := make(chan error, clients), make(chan error, clients)
	for range clients {
		all.Go(func() { guesses <- from("192.0.2.9", "guess") })
	}
	for range clients - waitForVerify { // the others wait
		if err := <-guesses; protocol.KindOf(err) != protocol.Unavailable {
			t.Errorf("a client too many: %v, want one to try again", err)
		}
	}
	for range clients {
		all.Go(func() { results <- from("192.0.2.1", "chosen one") })
	}
	for range waitForVerify {
		if err := <-guesses; protocol.KindOf(err) != protocol.Unavailable {
			t.Errorf("a client that guesses: %v, want it to make room", err)
		}
	}
	for range clients - waitForVerify {
		if err := <-results; protocol.KindOf(err) != protocol.Unavailable {
			t.Errorf("a client too many: %v, want one to try again", err)
		}
	}
	for _, end := range ends {
		end(false)
	}
	all.Wait()
	for range waitForVerify {
		if err := <-results; err != nil {
			t.Errorf("a client that waited: %v", err)
		}
	}
}

// TestStormOfStrangers has as many clients wait as may, each from another address, and then two devices whose passwords were right before:
// they are let in, the other one from another address of its IPv6 network.
func TestStormOfStrangers(t *testing.T) {
	t.Parallel()
	a := New("home")
	connect := func(remote, password string) error {
		_, err := a.Connect(access.ConnectInfo{Username: "scada", ClientID: "scada", Password: []byte(password), Remote: remote})
		return err
	}
	a.Set([]protocol.DeviceAccount{chosen(t, "scada", "the old one")})
	for _, remote := range []string{"192.0.2.1:1", "[2001:db8::1]:1"} { // the second is not verified, but remembered
		if err := connect(remote, "the old one"); err != nil {
			t.Fatal(err)
		}
	}
	a.Set([]protocol.DeviceAccount{chosen(t, "scada", "the new one")}) // which no client has sent yet
	var ends []func(bool)
	for range verifyAtOnce { // as if passwords were being verified
		ends = append(ends, a.verify.Take(turns.Source{}))
	}
	var all sync.WaitGroup
	strangers, devices := make(chan error, waitForVerify+1), make(chan error, 2)
	for i := range waitForVerify + 1 {
		all.Go(func() { strangers <- connect(fmt.Sprintf("198.51.100.%d:1", i), "guess") })
	}
	<-strangers // the others wait
	all.Go(func() { devices <- connect("192.0.2.1:2", "the new one") })
	all.Go(func() { devices <- connect("[2001:db8::2]:1", "the new one") })
	for range 2 {
		select {
		case err := <-strangers:
			if protocol.KindOf(err) != protocol.Unavailable {
				t.Errorf("a stranger: %v, want it to make room", err)
			}
		case err := <-devices:
			t.Errorf("a device whose password was right before: %v, want it to wait", err)
		}
	}
	for _, end := range ends {
		end(false)
	}
	all.Wait()
	close(devices)
	for err := range devices {
		if err != nil {
			t.Errorf("a device whose password was right before: %v", err)
		}
	}
}
