package netcheck

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/en/command"
	"github.com/colonyfleet/colony/protocol"
	wire "github.com/colonyfleet/colony/protocol/command"
)

func check(t *testing.T, o Options, c wire.NetworkCheck) (string, error) {
	t.Helper()
	return New(o).Run(t.Context(), command.Request{Command: &wire.Command{Kind: wire.Check, Args: protocol.Marshal(c)}})
}

func TestAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		o := Options{
			Resolve: func(_ context.Context, host string) ([]string, error) {
				if host == "nowhere" {
					return nil, errors.New("no such host")
				}
				time.Sleep(3 * time.Millisecond)
				return []string{"10.0.0.1", "10.0.0.2"}, nil
			},
			Ping: func(ctx context.Context, address string) (time.Duration, error) {
				if tries++; tries == 2 {
					<-ctx.Done()
					return 0, errors.New("no answer")
				}
				if address != "10.0.0.1" {
					return 0, errors.New("another address")
				}
				return time.Duration(tries) * time.Millisecond, nil
			},
			Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("connection refused") },
		}
		out, err := check(t, o, wire.NetworkCheck{Method: wire.Ping, Target: "gw", Count: 3})
		if want := "1: answer of 10.0.0.1 in 1.0 ms\n2: failed after 4997.0 ms: no answer\n3: answer of 10.0.0.1 in 3.0 ms\n2 of 3 attempts succeeded; shortest, mean and longest time: 1.0 ms, 2.0 ms, 3.0 ms\n"; out != want || err != nil {
			t.Errorf("ping: %q, %v", out, err)
		}
		if out, err := check(t, o, wire.NetworkCheck{Method: wire.Resolve, Target: "gw"}); err != nil || !strings.HasPrefix(out, "1: 10.0.0.1, 10.0.0.2 in 3.0 ms\n") {
			t.Errorf("dns: %q, %v", out, err)
		}
		if out, err := check(t, o, wire.NetworkCheck{Method: wire.Resolve, Target: "nowhere", Count: 2}); err == nil || !strings.HasSuffix(out, "0 of 2 attempts succeeded\n") || err.Error() != "dns of nowhere failed in all of 2 attempts: no such host" {
			t.Errorf("dns of no host: %q, %v", out, err)
		}
		if _, err := check(t, o, wire.NetworkCheck{Method: wire.Connect, Target: "gw:80"}); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("tcp: %v", err)
		}
		var f *command.Failure
		if _, err := check(t, o, wire.NetworkCheck{Method: wire.Connect, Target: "gw"}); !errors.As(err, &f) || f.Code != wire.BadArguments {
			t.Errorf("tcp without a port: %v", err)
		}
	})
}

// TestPing sends real echoes over the loopback, of both kinds of IP where the machine has them.
func TestPing(t *testing.T) {
	t.Parallel()
	if took, err := ping(t.Context(), "127.0.0.1"); err != nil || took <= 0 {
		t.Errorf("%s, %v", took, err)
	}
	if l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "[::1]:0"); err == nil {
		defer l.Close()
		if _, err := ping(t.Context(), "::1"); err != nil {
			t.Error(err)
		}
	}
}
