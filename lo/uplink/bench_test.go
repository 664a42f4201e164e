package uplink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// BenchmarkDrain sends a backlog to a receiver that only notes the position: what
// is left is the reading, looking through, packing and trimming of the site.
func BenchmarkDrain(b *testing.B) {
	for _, depth := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("statuses=%d", depth), func(b *testing.B) { benchDrain(b, Options{}, depth, appendStatuses) })
	}
	b.Run("readings=1000000", func(b *testing.B) {
		benchDrain(b, Options{Stream: "data/readings", Priority: 2, MaxAge: time.Hour}, 1_000_000, appendReadings)
	})
}

func benchDrain(b *testing.B, o Options, depth int, fill func(b *testing.B, j *journal.Journal, n int)) {
	j, err := journal.Open(b.TempDir(), journal.Options{MaxBytes: 8 << 30, SegmentBytes: 16 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	var u *Uplink
	bytes := 0
	at := uint64(0)
	o.Journal, o.Site = j, "plant"
	o.Resync = Snapshots(j, func() protocol.Snapshot { return protocol.Snapshot{} }, time.Now, never, func() {})
	o.Window = 1 // Publish is a call here and not a link
	o.Publish = func(_ context.Context, _ string, payload []byte) (func(context.Context) error, error) {
		bytes += len(payload)
		var batch protocol.Batch
		if err := protocol.Unmarshal(payload, &batch); err != nil {
			return answer(err)
		}
		if batch.Count > 0 {
			at = batch.First + uint64(batch.Count) - 1
		}
		u.Ack(protocol.Ack{V: protocol.Version, Epoch: batch.Epoch, Seq: at})
		return answer(nil)
	}
	u = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- u.Run(ctx) }()
	sent := 0
	for b.Loop() {
		b.StopTimer()
		u.Connected(false)
		fill(b, j, depth)
		b.StartTimer()
		u.Connected(true)
		for j.Trimmed() < j.Last() {
			<-time.After(100 * time.Microsecond)
		}
		sent += depth
	}
	b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(bytes)/float64(sent), "wire-B/event")
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// appendReadings appends machine data of about 200 bytes each.
func appendReadings(b *testing.B, j *journal.Journal, n int) {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	for n > 0 {
		entries := make([]journal.Entry, min(n, 1000))
		for i := range entries {
			entries[i] = journal.Entry{Class: journal.Data, Body: protocol.Marshal(protocol.Event{
				UnixMillis: j.Now().UnixMilli(), Kind: protocol.DataEvent,
				Body: protocol.Marshal(protocol.DataMessage{
					V: protocol.Version, Topic: fmt.Sprintf("hall-1/line-%d/temperature", i%20), QoS: 1, ExpiryMillis: 3_600_000, ContentType: "application/json",
					Payload: fmt.Appendf(nil, `{"time":"2026-03-01T10:%02d:%02dZ","value":%.4f,"unit":"Cel","quality":"good","n":%d}`, n%60, i%60, rng.Float64()*100, n-i),
				}),
			})}
		}
		if _, err := j.Append(context.Background(), entries...); err != nil {
			b.Fatal(err)
		}
		n -= len(entries)
	}
}

func appendStatuses(b *testing.B, j *journal.Journal, n int) {
	b.Helper()
	for n > 0 {
		entries := make([]journal.Entry, min(n, 1000))
		for i := range entries {
			entries[i] = journal.Entry{Class: journal.Event, Body: protocol.Marshal(protocol.Event{
				UnixMillis: int64(1_700_000_000_000 + n*7 + i), Kind: protocol.StatusEvent, Node: protocol.NodeID(fmt.Sprintf("gateway-%d", i%100)),
				Body: protocol.Marshal(protocol.DeploymentStatus{
					V: protocol.Version, Node: protocol.NodeID(fmt.Sprintf("gateway-%d", i%100)), Deployment: "line-controller", Agent: "5f1c9a", Seq: uint64(n + i),
					From: lifecycle.Installing, State: lifecycle.Installing, Actor: lifecycle.EN, Digest: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
					App: "line-controller", AppVersion: "1.2.3", Attempt: 1, Phase: protocol.Pulling, PulledBytes: uint64(i * 1000),
				}),
			})}
		}
		if _, err := j.Append(context.Background(), entries...); err != nil {
			b.Fatal(err)
		}
		n -= len(entries)
	}
}
