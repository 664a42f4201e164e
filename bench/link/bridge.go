package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/colonyfleet/colony/bench/link/ledger"
	"github.com/colonyfleet/colony/bench/link/process"
	"github.com/colonyfleet/colony/bench/link/wire"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/protocol/topic"
)

// durable are the settings of a Mosquitto that is to lose as little as it can:
// nothing is dropped for want of room, and the store is written every second.
const durable = `persistence true
persistence_location %s/
autosave_interval 1
max_queued_messages 0
max_queued_bytes 0
max_inflight_messages 1000
set_tcp_nodelay true
`

// basic is what every Mosquitto of the bench needs.
const basic = `listener %s %s
allow_anonymous true
log_dest stderr
log_type error
log_type warning
%s`

// bridge is the part of the configuration that makes a near broker a bridge. With
// the settings of tuned it is what a careful engineer writes.
const bridge = `connection centre
address %s
topic # out 1
%s`

const tuned = `cleansession false
restart_timeout 1
keepalive_interval 5
bridge_protocol_version mqttv50
notifications false
try_private true
`

// needMosquitto returns where the broker is.
func needMosquitto() (string, error) {
	for _, name := range []string{"mosquitto", "/usr/sbin/mosquitto"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("mosquitto is not installed: run scripts/setup --with-test-peers as root, or measure Colony alone with -link colony")
}

// mosquitto makes a broker with its state in dir.
func (b *bench) mosquitto(logs, dir, name, settings string) (p *process.Process, addr string, err error) {
	program, err := needMosquitto()
	if err != nil {
		return nil, "", err
	}
	if addr, err = freeport.Loopback(); err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", fmt.Errorf("make directory of mosquitto: %w", err)
	}
	host, port, _ := strings.Cut(addr, ":")
	path := filepath.Join(logs, name+".conf")
	// As root it would else become another user, that may not write there.
	text := "user root\n" + fmt.Sprintf(basic, port, host, settings)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, "", fmt.Errorf("write configuration: %w", err)
	}
	return &process.Process{
		Name: "mosquitto " + name, Args: []string{program, "-c", path}, Log: filepath.Join(logs, name+".log"), Ready: process.Listens(addr),
	}, addr, nil
}

// co makes what the peers have at the far side: a durable broker, a durable
// subscriber, and the network in front.
func (b *bench) co(dir string, number int) (*link, error) {
	state := filepath.Join(dir, "far")
	far, addr, err := b.mosquitto(dir, state, "far", fmt.Sprintf(durable, state))
	if err != nil {
		return nil, err
	}
	wan, err := impair.Listen(addr, impair.Profile{}, 1)
	if err != nil {
		return nil, err
	}
	return &link{
		far: []*process.Process{far}, wan: wan, consumer: &subscriber{addr: addr}, patience: b.patience,
		topic: func(n int) string { return topic.ForStatus(siteOf(number), node(n), deployment) },
	}, nil
}

// newBridge makes two Mosquittos, the near one with a bridge to the far one.
func newBridge(tune bool) func(context.Context, *bench, string, string, int) (*link, error) {
	return func(_ context.Context, b *bench, dir, nearDir string, number int) (*link, error) {
		l, err := b.co(dir, number)
		if err != nil {
			return nil, err
		}
		state := filepath.Join(nearDir, "mosquitto")
		settings := fmt.Sprintf(bridge, l.wan.Addr(), "")
		if tune {
			settings = fmt.Sprintf(durable, state) + fmt.Sprintf(bridge, l.wan.Addr(), tuned)
		} else {
			// By itself it finds a dead link after 90 s, and waits up to 30 s before it
			// connects again.
			l.patience = max(l.patience, b.slowPatience)
		}
		near, addr, err := b.mosquitto(dir, state, "near", settings)
		if err != nil {
			return nil, errors.Join(err, l.wan.Close())
		}
		l.near, l.publish, l.nearDir = []*process.Process{near}, addr, nearDir
		return l, nil
	}
}

// subscriber is the consumer that counts for the peers: a client of the far
// broker with a session of its own, which acknowledges what it has counted.
type subscriber struct {
	addr   string
	ledger *ledger.Ledger
	cancel context.CancelFunc
	done   sync.WaitGroup
}

const everything = topic.Everything

func (s *subscriber) start(ctx context.Context, l *ledger.Ledger) error {
	s.ledger = l
	// A broker that has just begun to listen may drop the first connections.
	first, cancel := context.WithTimeout(ctx, 6*wire.DialTimeout)
	defer cancel()
	c, err := s.connect()
	for err != nil {
		if retry.Sleep(first, poll) != nil {
			return err
		}
		c, err = s.connect()
	}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.done.Go(func() {
		for {
			s.receive(ctx, c)
			for err = errors.New("not tried yet"); err != nil; c, err = s.connect() {
				if retry.Sleep(ctx, poll) != nil {
					return
				}
			}
		}
	})
	return nil
}

func (s *subscriber) connect() (*wire.Conn, error) {
	c, err := wire.Dial(s.addr, "consumer", "", true)
	if err != nil {
		return nil, err
	}
	if err := c.Subscribe(everything); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// receive counts until the connection ends.
func (s *subscriber) receive(ctx context.Context, c *wire.Conn) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	for {
		first, body, err := c.Receive()
		if err != nil {
			return
		}
		if first>>4 != wire.PacketPublish {
			continue
		}
		d, err := wire.ParsePublish(first, body)
		if err != nil {
			return
		}
		if n, seq, err := parseReport(d.Payload); err == nil {
			s.ledger.Deliver(n, seq)
			_, delivered := s.ledger.Counts()
			s.ledger.Reached(uint64(delivered))
		}
		if c.Puback(d.ID) != nil || c.R.Buffered() == 0 && c.W.Flush() != nil {
			return
		}
	}
}

// settle has nothing to do: what arrived is counted.
func (s *subscriber) settle(context.Context) (int, error) { return 0, nil }

func (s *subscriber) perMessage() float64 { return 1 }

func (s *subscriber) stop() {
	if s.cancel != nil {
		s.cancel()
		s.done.Wait()
	}
}
