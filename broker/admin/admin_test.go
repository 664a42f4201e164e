package admin_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	paho3 "github.com/eclipse/paho.mqtt.golang"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/admin"
	"github.com/colonyfleet/colony/internal/testpart"
)

const patience = time.Minute

// TestOperator sees the clients of a broker, disconnects one, and ends its session.
func TestOperator(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	b, err := broker.New(broker.Options{
		Name: "test", Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "127.0.0.1:0"}},
		Access: access.Site("home"), Logger: log, Sessions: broker.Sessions{Dir: t.TempDir()},
	})
	if err != nil {
		t.Fatal(err)
	}
	testpart.Start(t, b)
	h := admin.Handler(b, log)
	from := "127.0.0.1:5"
	do := func(method, query string, want int, out any) string {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, admin.Path+query, nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Fatalf("%s %s: %d %s, want %d", method, query, w.Code, w.Body, want)
		}
		if out != nil {
			if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
				t.Fatal(err)
			}
		}
		return w.Body.String()
	}
	lost := make(chan struct{}, 1)
	c := paho3.NewClient(paho3.NewClientOptions().AddBroker("tcp://" + b.Addr("main")).SetClientID("mes@home/1").SetUsername("mes@home").SetCleanSession(false).
		SetProtocolVersion(4).SetAutoReconnect(false).SetConnectionLostHandler(func(paho3.Client, error) { lost <- struct{}{} }))
	for _, do := range []func() paho3.Token{c.Connect, func() paho3.Token { return c.Subscribe("line1/#", 1, nil) }} {
		if token := do(); !token.WaitTimeout(patience) || token.Error() != nil {
			t.Fatal(token.Error())
		}
	}
	var got admin.List
	do(http.MethodGet, "", http.StatusOK, &got)
	if got.Total != 1 || len(got.Clients) != 1 {
		t.Fatalf("%+v", got)
	}
	one := got.Clients[0]
	if one.Client != "mes@home/1" || one.Identity != "mes@home" || one.Subscriptions != 1 || one.Connection == nil || one.Connection.MQTT != "3.1.1" ||
		one.Connection.Listener != "main" || one.Session == nil || one.Session.Away != nil {
		t.Errorf("%+v", one)
	}
	if do(http.MethodGet, "?prefix=x", http.StatusOK, &got); got.Total != 0 {
		t.Errorf("with another prefix %+v", got)
	}
	if text := do(http.MethodGet, "?client=x", http.StatusNotFound, nil); !strings.Contains(text, "neither a connection nor a session") {
		t.Error(text)
	}
	do(http.MethodGet, "?limit=0", http.StatusUnprocessableEntity, nil)
	do(http.MethodDelete, "", http.StatusUnprocessableEntity, nil)
	do(http.MethodDelete, "?client=x", http.StatusNotFound, nil)
	do(http.MethodDelete, "?client=mes@home/1", http.StatusNoContent, nil)
	select {
	case <-lost:
	case <-time.After(patience):
		t.Fatal("the client is still connected")
	}
	do(http.MethodGet, "?client=mes@home/1", http.StatusOK, &got)
	if one := got.Clients[0]; one.Connection != nil || one.Session == nil || one.Session.Away == nil || one.Subscriptions != 1 {
		t.Errorf("disconnected: %+v", one)
	}
	if text := do(http.MethodDelete, "?client=mes@home/1", http.StatusNotFound, nil); !strings.Contains(text, "--session") {
		t.Error(text)
	}
	do(http.MethodDelete, "?client=mes@home/1&session=true", http.StatusNoContent, nil)
	do(http.MethodGet, "?client=mes@home/1", http.StatusNotFound, nil)
	from = "192.0.2.1:5"
	if text := do(http.MethodGet, "", http.StatusForbidden, nil); !strings.Contains(text, "own machine") {
		t.Error(text)
	}
}
