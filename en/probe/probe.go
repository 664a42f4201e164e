// Package probe asks a container whether it is healthy: by a command in it, by
// HTTP, or by opening a TCP connection.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/plan"
	"github.com/colonyfleet/colony/protocol"
)

// maxAnswer bounds the message of a probe, in bytes.
const maxAnswer = 256

// Execer runs a command in a container, as an engine does.
type Execer interface {
	// Exec runs a command in a container, until it or ctx ends.
	Exec(ctx context.Context, id engine.ID, command []string) (engine.ExecResult, error)
}

// A Prober probes containers. It keeps no connection open between two probes.
// Its methods may be called concurrently.
type Prober struct {
	exec   Execer
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	client *http.Client
}

// New returns a prober that runs commands through exec, and opens connections to containers with dial; nil: that of the system.
func New(exec Execer, dial func(ctx context.Context, network, address string) (net.Conn, error)) *Prober {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &Prober{exec: exec, dial: dial, client: &http.Client{
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a redirect is an answer
	}}
}

// Probe asks once, within ctx. Message says what was wrong where ok is false. An
// error means that the question could not be put: the engine is away, the
// container does not run any more, or ctx was cancelled; it says nothing about health.
func (p *Prober) Probe(ctx context.Context, t plan.Target) (ok bool, message string, err error) {
	switch {
	case len(t.Health.Command) > 0:
		ok, message, err = p.command(ctx, t)
	case t.Health.HTTP != "":
		ok, message = p.http(ctx, t)
	case t.Health.Port != 0:
		ok, message = p.tcp(ctx, t)
	default:
		return true, "", nil // nothing is asked: it runs
	}
	switch {
	case ok || err == nil && ctx.Err() == nil:
		return ok, message, err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return false, fmt.Sprintf("the probe took longer than %s", t.Timeout), nil
	case ctx.Err() != nil:
		return false, "", ctx.Err()
	default:
		return false, "", err
	}
}

func (p *Prober) command(ctx context.Context, t plan.Target) (bool, string, error) {
	result, err := p.exec.Exec(ctx, t.ID, t.Health.Command)
	if err != nil {
		if protocol.KindOf(err) == protocol.NotFound || engine.CodeOf(err) == protocol.EngineUnavailable || ctx.Err() != nil {
			return false, "", fmt.Errorf("run probe: %w", err)
		}
		return false, short("the probe could not run: " + err.Error()), nil
	}
	if result.ExitCode != 0 {
		return false, short(fmt.Sprintf("the probe exited with %d: %s", result.ExitCode, lastLine(result.Output))), nil
	}
	return true, "", nil
}

func (p *Prober) http(ctx context.Context, t plan.Target) (bool, string) {
	path := t.Health.HTTP
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address(t)+path, nil)
	if err != nil {
		return false, short("the probe's path is wrong: " + err.Error())
	}
	req.Header.Set("User-Agent", "colony-en")
	resp, err := p.client.Do(req)
	if err != nil {
		return false, short(err.Error())
	}
	defer resp.Body.Close() // the answer has been read
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return false, short(fmt.Sprintf("GET %s answered %s: %s", path, resp.Status, lastLine(body)))
	}
	return true, ""
}

func (p *Prober) tcp(ctx context.Context, t plan.Target) (bool, string) {
	conn, err := p.dial(ctx, "tcp", address(t))
	if err != nil {
		return false, short(err.Error())
	}
	_ = conn.Close() // that it opened is the answer
	return true, ""
}

// address is where the container listens; one on the host's network has no address.
func address(t plan.Target) string {
	host := t.IP
	if host == "" {
		host = "127.0.0.1"
	}
	port := t.Health.Port
	if port == 0 {
		port = 80
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

func lastLine(b []byte) string {
	s := strings.TrimSpace(strings.ToValidUTF8(string(b), "?"))
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// short makes one bounded line of what a container said.
func short(s string) string {
	s = strings.TrimRight(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s), ": ")
	for len(s) > maxAnswer {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}
