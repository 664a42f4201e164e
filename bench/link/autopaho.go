package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/autopaho/queue"
	qfile "github.com/eclipse/paho.golang/autopaho/queue/file"
	"github.com/eclipse/paho.golang/autopaho/queue/memory"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"
	sfile "github.com/eclipse/paho.golang/paho/store/file"

	"github.com/colonyfleet/colony/bench/link/process"
	"github.com/colonyfleet/colony/bench/link/wire"
	"github.com/colonyfleet/colony/internal/retry"
)

// autopahoText as the first argument makes this program the bridge that is
// measured, so that it can be killed like the others.
const autopahoText = "run-autopaho-bridge"

// newAutopaho makes two Mosquittos and a program between them that subscribes to
// the near one and publishes to the far one through an autopaho queue.
func newAutopaho(sort string) func(context.Context, *bench, string, string, int) (*link, error) {
	return func(_ context.Context, b *bench, dir, nearDir string, number int) (*link, error) {
		l, err := b.co(dir, number)
		if err != nil {
			return nil, err
		}
		brokerDir, queueDir := filepath.Join(nearDir, "mosquitto"), filepath.Join(nearDir, "autopaho")
		near, addr, err := b.mosquitto(dir, brokerDir, "near", fmt.Sprintf(durable, brokerDir))
		if err != nil {
			return nil, errors.Join(err, l.wan.Close())
		}
		up := filepath.Join(dir, "bridge-is-up")
		program := &process.Process{
			Name: "autopaho bridge", Log: filepath.Join(dir, "autopaho.log"),
			Args: []string{b.self, autopahoText, "-near", addr, "-far", l.wan.Addr(), "-queue", sort, "-dir", queueDir, "-up", up},
			Ready: func(context.Context) error {
				_, err := os.Stat(up)
				return err
			},
		}
		l.near, l.publish, l.nearDir = []*process.Process{near, program}, addr, nearDir
		return l, nil
	}
}

// runAutopaho is the bridge. It acknowledges a message to the near broker only once
// the queue has it, and keeps trying where the queue is full.
func runAutopaho(ctx context.Context, args []string) error {
	f := flag.NewFlagSet(autopahoText, flag.ContinueOnError)
	near, far := f.String("near", "", "address of the near broker"), f.String("far", "", "address of the far broker")
	sort, dir := f.String("queue", "file", "file or memory"), f.String("dir", "", "where files go")
	up := f.String("up", "", "file to make once it is subscribed")
	if err := f.Parse(args); err != nil {
		return err
	}
	q, session, err := stores(*sort, *dir)
	if err != nil {
		return err
	}
	out, err := autopaho.NewConnection(ctx, config(*far, "bridge-out", autopaho.ClientConfig{
		Queue: q, ClientConfig: paho.ClientConfig{Session: session, OnClientError: say},
	}))
	if err != nil {
		return fmt.Errorf("connect to the far broker: %w", err)
	}
	in := config(*near, "bridge-in", autopaho.ClientConfig{
		OnConnectionUp: func(m *autopaho.ConnectionManager, _ *paho.Connack) {
			_, err := m.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: everything, QoS: 1}}})
			if err == nil {
				err = os.WriteFile(*up, nil, 0o600)
			}
			if err != nil {
				say(err)
			}
		},
	})
	in.OnPublishReceived = []func(paho.PublishReceived) (bool, error){func(r paho.PublishReceived) (bool, error) {
		m := &autopaho.QueuePublish{Publish: &paho.Publish{Topic: r.Packet.Topic, Payload: r.Packet.Payload, QoS: 1}}
		for {
			err := out.PublishViaQueue(ctx, m)
			if err == nil || retry.Sleep(ctx, retryDelay) != nil {
				return true, err
			}
			say(err)
		}
	}}
	if _, err := autopaho.NewConnection(ctx, in); err != nil {
		return fmt.Errorf("connect to the near broker: %w", err)
	}
	<-ctx.Done()
	return nil
}

func say(err error) { fmt.Fprintln(os.Stderr, err) }

// config completes the options of a connection: a session that lasts, and no long
// waits.
func config(addr, id string, c autopaho.ClientConfig) autopaho.ClientConfig {
	c.ServerUrls = []*url.URL{{Scheme: "mqtt", Host: addr}}
	c.KeepAlive, c.SessionExpiryInterval = wire.KeepAlive, 3600
	c.ReconnectBackoff, c.ConnectTimeout = autopaho.NewConstantBackoff(time.Second), wire.DialTimeout
	c.ClientID = id
	return c
}

// stores makes the queue and the session of the way up: both on disk, or both in
// memory.
func stores(sort, dir string) (queue.Queue, *state.State, error) {
	if sort == "memory" {
		return memory.New(), state.NewInMemory(), nil
	}
	var list []string
	for _, name := range []string{"queue", "sent", "received"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, nil, fmt.Errorf("make directory of the queue: %w", err)
		}
		list = append(list, path)
	}
	q, err := qfile.New(list[0], "m", ".msg")
	if err != nil {
		return nil, nil, fmt.Errorf("open queue: %w", err)
	}
	sent, err := sfile.New(list[1], "s", ".pkt")
	if err != nil {
		return nil, nil, fmt.Errorf("open session: %w", err)
	}
	received, err := sfile.New(list[2], "r", ".pkt")
	if err != nil {
		return nil, nil, fmt.Errorf("open session: %w", err)
	}
	return q, state.New(sent, received), nil
}
