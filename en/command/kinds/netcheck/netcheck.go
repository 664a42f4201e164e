// Package netcheck executes the command that tries to reach an address from the node: by looking a name up, by opening a connection, or by an
// ICMP echo.
package netcheck

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

const (
	// patience is how long one attempt may take, apart how long it is to the next one.
	patience = 5 * time.Second
	apart    = time.Second
)

// Options are how the node reaches others.
type Options struct {
	// Dial opens a connection. Resolve looks a name up. Ping sends one echo to an address, and returns how long its answer took.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Resolve func(ctx context.Context, host string) ([]string, error)
	Ping    func(ctx context.Context, address string) (time.Duration, error)
}

// System returns the Options of the machine.
func System() Options {
	return Options{Dial: new(net.Dialer).DialContext, Resolve: net.DefaultResolver.LookupHost, Ping: ping}
}

// New returns the kind.
func New(o Options) command.Kind {
	return command.Kind{Kind: wire.Check, Run: func(ctx context.Context, r command.Request) (string, error) { return o.run(ctx, r.Command) }}
}

func (o Options) run(ctx context.Context, c *wire.Command) (string, error) {
	var check wire.NetworkCheck
	if err := protocol.Unmarshal(c.Args, &check); err != nil {
		return "", command.Failf(wire.BadArguments, "%v", err)
	}
	if check.Method == wire.Connect {
		if _, _, err := net.SplitHostPort(check.Target); err != nil {
			return "", command.Failf(wire.BadArguments, "tcp needs host:port, such as 10.0.0.1:502 or [fd00::1]:443; the target is %q", check.Target)
		}
	}
	var b strings.Builder
	count, failed := int(max(check.Count, 1)), 0
	var last error
	var times []time.Duration
	for n := range count {
		if n > 0 {
			if err := retry.Sleep(ctx, apart); err != nil {
				return b.String(), err
			}
		}
		took, words, err := o.attempt(ctx, check)
		if err != nil {
			failed++
			last = err
			fmt.Fprintf(&b, "%d: failed after %s: %v\n", n+1, millis(took), err)
			continue
		}
		times = append(times, took)
		fmt.Fprintf(&b, "%d: %s in %s\n", n+1, words, millis(took))
	}
	fmt.Fprintf(&b, "%d of %d attempts succeeded", count-failed, count)
	if len(times) > 0 {
		least, most, sum := times[0], times[0], time.Duration(0)
		for _, t := range times {
			least, most, sum = min(least, t), max(most, t), sum+t
		}
		fmt.Fprintf(&b, "; shortest, mean and longest time: %s, %s, %s", millis(least), millis(sum/time.Duration(len(times))), millis(most))
	}
	b.WriteString("\n")
	if failed == count {
		return b.String(), fmt.Errorf("%s of %s failed in all of %d attempts: %w", check.Method, check.Target, count, last)
	}
	return b.String(), nil
}

// attempt tries once.
func (o Options) attempt(ctx context.Context, check wire.NetworkCheck) (took time.Duration, words string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	switch check.Method {
	case wire.Resolve:
		addresses, err := o.Resolve(ctx, check.Target)
		return time.Since(began), strings.Join(addresses, ", "), err
	case wire.Connect:
		conn, err := o.Dial(ctx, "tcp", check.Target)
		took = time.Since(began)
		if err != nil {
			return took, "", err
		}
		to := conn.RemoteAddr().String()
		return took, "connected to " + to, conn.Close()
	case wire.Ping:
		addresses, err := o.Resolve(ctx, check.Target)
		if err != nil {
			return time.Since(began), "", err
		}
		began = time.Now()
		took, err := o.Ping(ctx, addresses[0])
		if err != nil {
			return time.Since(began), "", err
		}
		return took, "answer of " + addresses[0], nil
	}
	return 0, "", command.Failf(wire.BadArguments, "network check by %q: want dns, tcp or ping", check.Method)
}

// millis writes a duration in milliseconds.
func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
