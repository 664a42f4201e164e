package lo

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
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
	stopLO(t, l)
	c.stop()
	l = startLO(t, o)
	if _, _, _, err := dialDevice(t, l, "hmi", "new"); err != nil {
		t.Errorf("after a restart without a link: %v", err)
	}
}
