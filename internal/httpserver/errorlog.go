package httpserver

import (
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/netaddr"
	"github.com/colonyfleet/colony/internal/refusals"
)

// handshake is how a line of the http package begins that says that a connection has ended within TLS.
const handshake = "http: TLS handshake error from "

// summary is how long after the first line the log says how many there were more.
const summary = time.Minute

// An errorLog has the lines that a server logs about its clients. Any client of its port can cause them. So for each address (IPv6: each /64), and for
// lines that are not about TLS, it shows so many in a minute, and then a count of the others. Its methods may be called concurrently.
type errorLog struct {
	shown     *refusals.Log
	tlsFailed func()

	mu    sync.Mutex // protects what follows
	timer *time.Timer
}

func newErrorLog(logger *slog.Logger, tlsFailed func()) *errorLog {
	return &errorLog{shown: refusals.New(logger), tlsFailed: tlsFailed}
}

// logger returns what a server writes to.
func (e *errorLog) logger() *log.Logger { return log.New(e, "", 0) }

// HandshakeFailed reports whether a line that an http.Server logs says that a connection has ended within TLS: of whom, host:port, and why.
func HandshakeFailed(line string) (remote, why string, ok bool) {
	rest, ok := strings.CutPrefix(line, handshake)
	remote, why, _ = strings.Cut(rest, ": ")
	return remote, why, ok
}

// Write takes one line.
func (e *errorLog) Write(b []byte) (int, error) {
	line := strings.TrimSuffix(string(b), "\n")
	what, whom := "http server", ""
	if remote, _, ok := HandshakeFailed(line); ok {
		what, whom = "tls handshake", netaddr.Network(remote)
		if e.tlsFailed != nil {
			e.tlsFailed()
		}
	}
	e.shown.Warn(what, whom, line, line)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer == nil {
		e.shown.Summarise(time.Now(), false) // its window begins
		e.timer = time.AfterFunc(summary, e.summarise)
	}
	return len(b), nil
}

// summarise says how many lines were not shown.
func (e *errorLog) summarise() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	e.shown.Summarise(time.Now(), true)
}
