// Package admin is the HTTP interface by which an operator sees the clients of a broker and
// disconnects them. It answers programs of its own machine alone: it has no authentication.
package admin

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/protocol"
)

// Path is where the interface is.
const Path = "/api/v1/broker/clients"

// A Broker is what the interface works on.
type Broker interface {
	// Clients returns all clients that have a connection or a stored session, by client id.
	Clients() []broker.ClientInfo
	// Disconnect ends the connection of a client, and with endSession its session. The error is of kind NotFound where there is none.
	Disconnect(client string, endSession bool) error
}

// A Client is one client as the interface shows it.
type Client struct {
	Client   string `json:"client"`   // client id
	Identity string `json:"identity"` // user name
	// Connection is absent while there is none, Session where there is none that outlives
	// the connection.
	Connection    *Connection `json:"connection,omitempty"`
	Session       *Session    `json:"session,omitempty"`
	Subscriptions int         `json:"subscriptions"` // number of filters
}

// A Connection is that of a client.
type Connection struct {
	Since            time.Time `json:"since"`            // when the connection began
	Listener         string    `json:"listener"`         // name of the broker's listener
	Remote           string    `json:"remote"`           // address of the client, host:port
	MQTT             string    `json:"mqtt"`             // 5 or 3.1.1
	KeepAliveSeconds int       `json:"keepAliveSeconds"` // as agreed in CONNACK; 0: none
	Received         int64     `json:"received"`         // messages of the client
	Sent             int64     `json:"sent"`             // messages to it
	WaitingBytes     int64     `json:"waitingBytes"`     // in memory, for it to take them
}

// A Session is what the broker stores of a client.
type Session struct {
	ExpirySeconds uint32     `json:"expirySeconds"`  // after the end of the connection; 4294967295: it does not expire
	Away          *time.Time `json:"away,omitempty"` // since when there is no connection
	Messages      int        `json:"messages"`       // that wait, the unacknowledged ones among them
	Bytes         int64      `json:"bytes"`          // size of the stored messages, in bytes
}

// List is the answer to GET.
type List struct {
	Clients []Client `json:"clients"`
	// Total is how many clients there are that the request asks for; Clients has no more than its limit.
	Total int `json:"total"`
}

// defaultLimit is how many clients one answer has.
const defaultLimit = 1000

// Handler serves GET Path, with the parameters client (that id alone), prefix (ids that begin so) and
// limit, and DELETE Path with the parameters client and session=true, which ends the session too.
func Handler(b Broker, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, r *http.Request) { list(w, r, b) })
	mux.HandleFunc("DELETE "+Path, func(w http.ResponseWriter, r *http.Request) {
		client, session := r.FormValue("client"), r.FormValue("session") == "true"
		if client == "" {
			refuse(w, protocol.Errorf(protocol.Invalid, "no client id: want the parameter client"))
			return
		}
		if err := b.Disconnect(client, session); err != nil {
			refuse(w, err)
			return
		}
		log.Info("client disconnected by an operator", "client", client, "session_ended", session)
		w.WriteHeader(http.StatusNoContent)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
			refuse(w, protocol.Errorf(protocol.Denied, "the clients of the broker are shown on its own machine alone: call it there, at the address of http"))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// None serves Path where the broker is an external one, which alone knows its clients: why names
// it.
func None(why string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, protocol.Errorf(protocol.NotFound, "%s", why))
	})
}

func list(w http.ResponseWriter, r *http.Request, b Broker) {
	limit := defaultLimit
	if s := r.FormValue("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			refuse(w, protocol.Errorf(protocol.Invalid, "limit %q: want a number from 1 on", s))
			return
		}
		limit = n
	}
	client, prefix := r.FormValue("client"), r.FormValue("prefix")
	out := List{Clients: []Client{}}
	for _, c := range b.Clients() {
		if client != "" && c.Client != client || !strings.HasPrefix(c.Client, prefix) {
			continue
		}
		if out.Total++; len(out.Clients) < limit {
			out.Clients = append(out.Clients, show(c))
		}
	}
	if client != "" && out.Total == 0 {
		refuse(w, protocol.Errorf(protocol.NotFound, "client %s: it has neither a connection nor a session: see the list of clients", client))
		return
	}
	answer(w, http.StatusOK, "application/json", out)
}

func show(c broker.ClientInfo) Client {
	out := Client{Client: c.Client, Identity: c.Identity, Subscriptions: c.Subscriptions}
	if !c.Connected.IsZero() {
		version := "5"
		if c.MQTT == 4 {
			version = "3.1.1"
		}
		out.Connection = &Connection{c.Connected, c.Listener, c.Remote, version, c.KeepAlive, c.Received, c.Sent, c.Waiting}
	}
	if c.Stored {
		out.Session = &Session{ExpirySeconds: c.Expiry, Messages: c.Queued, Bytes: c.QueuedBytes}
		if !c.Away.IsZero() {
			out.Session.Away = &c.Away
		}
	}
	return out
}

// refuse answers with an error, as RFC 9457 says.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch protocol.KindOf(err) {
	case protocol.Invalid:
		status = http.StatusUnprocessableEntity
	case protocol.NotFound:
		status = http.StatusNotFound
	case protocol.Denied:
		status = http.StatusForbidden
	case protocol.Conflict:
		status = http.StatusConflict
	case protocol.Unavailable:
		status = http.StatusServiceUnavailable
	case protocol.Internal:
	}
	answer(w, status, "application/problem+json", map[string]any{"title": http.StatusText(status), "status": status, "detail": err.Error()})
}

func answer(w http.ResponseWriter, status int, kind string, v any) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that has disconnected needs no answer
}
