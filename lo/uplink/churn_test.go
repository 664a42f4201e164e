package uplink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/lo/uplink/pace"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// status is what one of a thousand nodes reports.
func status(rng *rand.Rand, n int) (key string, body []byte) {
	node := protocol.NodeID(fmt.Sprintf("gateway-%d", rng.IntN(1000)))
	states := []lifecycle.State{lifecycle.Installing, lifecycle.Installed, lifecycle.Updating, lifecycle.Failed}
	return "status/" + string(node), protocol.Marshal(protocol.Event{
		UnixMillis: time.Now().UnixMilli(), Kind: protocol.StatusEvent, Node: node,
		Body: protocol.Marshal(protocol.DeploymentStatus{
			V: protocol.Version, Node: node, Deployment: "line-controller", Agent: fmt.Sprintf("%016x", rand.New(rand.NewPCG(uint64(len(node)), uint64(node[len(node)-1]))).Uint64()), Seq: uint64(n),
			From: lifecycle.Installing, State: states[rng.IntN(len(states))], Actor: lifecycle.EN,
			Digest: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", App: "line-controller", AppVersion: "1.2.3", Attempt: 1,
			Phase: protocol.Pulling, PulledBytes: rng.Uint64N(1 << 30),
		}),
	})
}

// TestChurn counts what the states of a thousand nodes cost on 64 kbit/s with a
// way of 600 ms, from a few a second to more than the link carries.
func TestChurn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		perSecond int
		most      float64 // bytes per event, those of MQTT and TCP/IP included
	}{{5, 150}, {20, 90}, {100, 60}, {500, 30}} {
		t.Run(fmt.Sprint(tt.perSecond), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const seconds, head = 60, 60 + 40 + 100 // of a batch: topic and TCP/IP, and its Ack
				j, err := journal.Open(filepath.Join(t.TempDir(), "j"), journal.Options{})
				if err != nil {
					t.Fatal(err)
				}
				w := &wire{t: t, rate: 8e3, delay: 300 * time.Millisecond}
				w.run(pace.New(pace.Options{}), []Options{{Journal: j}}, func() {
					rng := rand.New(rand.NewPCG(1, 1))
					steps := min(tt.perSecond, 20) // a commit may hold several
					for i := range seconds * steps {
						entries := make([]journal.Entry, tt.perSecond/steps)
						for k := range entries {
							key, body := status(rng, i)
							entries[k] = journal.Entry{Class: journal.State, Key: key, Body: body}
						}
						if _, err := j.Append(context.Background(), entries...); err != nil {
							t.Fatal(err)
						}
						<-time.After(time.Second / time.Duration(steps))
					}
					for j.Trimmed() < j.Last() {
						<-time.After(time.Second)
					}
					w.mu.Lock()
					defer w.mu.Unlock()
					l := w.streams[""]
					events := seconds * tt.perSecond
					bytes := float64(l.bytes+l.batches*head) / float64(events)
					t.Logf("%d statuses a second: %.1f bytes each in %d batches of %.1f events, %.0f %% of the link, Acks after %v, %d superseded",
						tt.perSecond, bytes, l.batches, float64(events)/float64(l.batches), bytes*float64(tt.perSecond)/8e3*100, l.up.Status().AckLatency.Round(time.Millisecond), j.Stats().Superseded)
					if bytes > tt.most {
						t.Errorf("%.1f bytes for a status, want at most %.0f", bytes, tt.most)
					}
				})
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
