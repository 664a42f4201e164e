package lo

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	paho3 "github.com/eclipse/paho.mqtt.golang"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/admin"
	"github.com/colonyfleet/colony/protocol"
)

// deviceState is a desired state with these accounts.
func deviceState(generation uint64, accounts ...protocol.DeviceAccount) protocol.SiteDesired {
	m := rules(generation)
	m.Devices = accounts
	return m
}

func deviceAccount(user, password string) protocol.DeviceAccount {
	sum := sha256.Sum256([]byte(password))
	return protocol.DeviceAccount{User: user, ClientIDs: []string{"PLC_*"}, Publish: []string{"line1/plc/#"}, Subscribe: []string{"line1/#"}, SHA256: sum[:]}
}

// dialDevice connects a client of MQTT 3.1.1 with a fixed client id, as a PLC does.
func dialDevice(t *testing.T, l *LO, user, password string) (c paho3.Client, got chan string, lost *atomic.Bool, err error) {
	t.Helper()
	got, lost = make(chan string, 100), &atomic.Bool{}
	c = paho3.NewClient(paho3.NewClientOptions().AddBroker("tcp://" + l.MQTTAddr()).SetClientID("PLC_" + user).SetUsername(user).SetPassword(password).
		SetProtocolVersion(4).SetAutoReconnect(false).SetConnectionLostHandler(func(paho3.Client, error) { lost.Store(true) }).
		SetDefaultPublishHandler(func(_ paho3.Client, m paho3.Message) { got <- m.Topic() }))
	token := c.Connect()
	token.Wait()
	t.Cleanup(func() { c.Disconnect(0) })
	return c, got, lost, token.Error()
}

// TestDevices gives a site device accounts, changes and removes them, while its broker serves: also over a
// restart without a link.
func TestDevices(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	o.ClientEvents = true
	l := startLO(t, o)
	if _, _, _, err := dialDevice(t, l, "plc", "secret"); err == nil {
		t.Fatal("a device without an account was let in")
	}
	m := deviceState(1, deviceAccount("plc", "secret"), deviceAccount("hmi", "other"))
	c.want(m)
	inForce(t, l, m)
	eventually(t, "the accounts are in force", func() bool {
		_, _, _, err := dialDevice(t, l, "plc", "secret")
		return err == nil
	})
	if _, _, _, err := dialDevice(t, l, "plc", "wrong"); err == nil {
		t.Error("a wrong password was accepted")
	}
	plc, got, plcLost, err := dialDevice(t, l, "plc", "secret")
	if err != nil {
		t.Fatal(err)
	}
	_, _, hmiLost, err := dialDevice(t, l, "hmi", "other")
	if err != nil {
		t.Fatal(err)
	}
	if token := plc.Subscribe("#", 1, nil); !token.WaitTimeout(patience) || token.Error() != nil {
		t.Fatal("subscribe to #: ", token.Error())
	}
	// Of all that comes it gets what it may receive: nothing of Colony's, nor of other lines.
	for _, name := range []string{"colony/v1/s1/data/x", "line2/x", "line1/x"} {
		if err := l.broker.Publish(t.Context(), broker.Message{Topic: name, Payload: []byte("x"), QoS: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if token := plc.Publish("line1/plc/x", 1, false, "x"); !token.WaitTimeout(patience) || token.Error() != nil {
		t.Fatal("publish: ", token.Error())
	}
	if names := []string{<-got, <-got}; !slices.Equal(names, []string{"line1/x", "line1/plc/x"}) {
		t.Errorf("the device got %v", names)
	}
	resp := get(t, l, admin.Path+"?client=PLC_plc")
	var list admin.List
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || resp.Body.Close() != nil || len(list.Clients) != 1 || list.Clients[0].Identity != "plc" {
		t.Errorf("the LO shows %+v, %v", list, err)
	}
	// Others than those whose password changes stay connected.
	m = deviceState(2, deviceAccount("plc", "secret"), deviceAccount("hmi", "new"))
	c.want(m)
	eventually(t, "the client with the old password is disconnected", hmiLost.Load)
	if plcLost.Load() || !plc.IsConnected() {
		t.Error("a client whose account did not change was disconnected")
	}
	eventually(t, "the CO is to learn who came and who left", func() bool {
		n := kinds(t, l)
		return n[protocol.ClientConnected] > 0 && n[protocol.ClientDisconnected] > 0
	})
	stopLO(t, l)
	c.stop()
	l = startLO(t, o)
	if _, _, _, err := dialDevice(t, l, "hmi", "new"); err != nil {
		t.Errorf("after a restart without a link: %v", err)
	}
}

// deviceSession makes a session of a device account, or uses it again, and ends its connection.
func deviceSession(l *LO, user, id string) error {
	client := paho3.NewClient(paho3.NewClientOptions().AddBroker("tcp://" + l.MQTTAddr()).SetClientID(id).SetUsername(user).SetPassword("secret").
		SetProtocolVersion(4).SetCleanSession(false).SetAutoReconnect(false))
	token := client.Connect()
	token.Wait()
	client.Disconnect(100)
	return token.Error()
}

// deviceSessions lists the users and client ids of the stored sessions.
func deviceSessions(l *LO) string {
	var list []string
	for _, c := range l.broker.Clients() {
		if c.Stored {
			list = append(list, c.Identity+" "+c.Client)
		}
	}
	return strings.Join(list, ", ")
}

// TestSessionsOfAccounts ends the sessions of an account with the account, and those whose client id another account names by
// now: while the LO runs, and what was stored when it starts.
func TestSessionsOfAccounts(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	l := startLO(t, o)
	every := deviceAccount("every", "secret")
	every.ClientIDs = []string{"*"}
	old := deviceAccount("old", "secret")
	named := func(id string) protocol.DeviceAccount {
		d := deviceAccount("for-"+id, "secret")
		d.ClientIDs = []string{id}
		return d
	}
	m := deviceState(1, every, old)
	c.want(m)
	inForce(t, l, m)
	session := func(user, id string) error { return deviceSession(l, user, id) }
	users := func() string { return deviceSessions(l) }
	eventually(t, "the accounts are in force", func() bool { return session("old", "PLC_old") == nil })
	for _, id := range []string{"first", "second", "third"} {
		if err := session("every", id); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := users(), "old PLC_old, every first, every second, every third"; got != want {
		t.Fatalf("sessions of %s, want %s", got, want)
	}
	m = deviceState(2, every, named("first"))
	c.want(m)
	eventually(t, "what has no account any more ends", func() bool { return users() == "every second, every third" })
	if err := session("for-first", "first"); err != nil {
		t.Errorf("a client id that its account names: %v", err)
	}
	if err := session("every", "first"); err == nil {
		t.Error("a pattern covers a client id that another account names")
	}
	m = deviceState(3, every, named("first"), named("second"))
	if err := l.broker.Stop(t.Context()); err != nil { // so that the accounts change without it
		t.Fatal(err)
	}
	c.want(m)
	inForce(t, l, m)
	stopLO(t, l)
	l = startLO(t, o)
	if got, want := users(), "for-first first, every third"; got != want {
		t.Errorf("after a start sessions of %s, want %s", got, want)
	}
}

// onRecord is a handler of a log that calls a function with each record.
type onRecord struct {
	slog.Handler
	call func(slog.Record)
}

func (o onRecord) Enabled(context.Context, slog.Level) bool { return true }

func (o onRecord) Handle(ctx context.Context, r slog.Record) error {
	o.call(r)
	return o.Handler.Handle(ctx, r)
}

// TestSessionOfSuccessor keeps the session that an account has just made with the client id of one that was removed, while the sessions of
// that one are being ended.
func TestSessionOfSuccessor(t *testing.T) {
	t.Parallel()
	c := newFakeCO(t)
	o := localOptions(t, c, t.TempDir(), "127.0.0.1:0")
	var l *LO
	var once sync.Once
	succeed := func() {
		if err := l.broker.Disconnect("second", true); err != nil {
			t.Error(err)
		}
		if err := deviceSession(l, "new", "second"); err != nil {
			t.Errorf("the account that has the client id by now: %v", err)
		}
	}
	o.Logger = slog.New(onRecord{o.Logger.Handler(), func(r slog.Record) {
		if strings.HasPrefix(r.Message, "session ended") {
			once.Do(succeed) // when the first session has ended, and before the second one
		}
	}})
	l = startLO(t, o)
	every, next := deviceAccount("every", "secret"), deviceAccount("new", "secret")
	every.ClientIDs, next.ClientIDs = []string{"*"}, []string{"second"}
	m := deviceState(1, every)
	c.want(m)
	inForce(t, l, m)
	eventually(t, "the account is in force", func() bool { return deviceSession(l, "every", "first") == nil })
	for _, id := range []string{"second", "third"} {
		if err := deviceSession(l, "every", id); err != nil {
			t.Fatal(err)
		}
	}
	c.want(deviceState(2, next))
	eventually(t, "the sessions of the account have ended", func() bool { return !strings.Contains(deviceSessions(l), "every") })
	if got, want := deviceSessions(l), "new second"; got != want {
		t.Errorf("sessions of %q, want %q", got, want)
	}
}
