package sessions

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// BenchmarkOpen opens a store of 10,000 sessions with 1,000,000 messages.
func BenchmarkOpen(b *testing.B) {
	o := Options{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler), Limits: Limits{TotalMessages: 2_000_000}}
	open := func() *Store {
		s, err := Open(context.Background(), o)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	s := open()
	var all []*Session
	for i := range 10_000 {
		one, err := s.Create(fmt.Sprint("client", i), Owner{Name: fmt.Sprint("owner", i), Identity: "identity"}, Never)
		if err != nil {
			b.Fatal(err)
		}
		one.Subscribe(fmt.Sprint("to/", i), Subscription{QoS: 1})
		all = append(all, one)
	}
	begun, payload := time.Now(), make([]byte, 200)
	for i := range 1_000_000 {
		s.Publish(&Publish{
			Body: Body{Topic: fmt.Sprint("to/", i%len(all)), Payload: payload},
			To:   []Target{{Session: all[i%len(all)], Delivery: Delivery{QoS: 1}}},
		}, nil)
	}
	if err := s.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.Logf("stored %.0f/s", 1e6/time.Since(begun).Seconds())
	for b.Loop() {
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		begun := time.Now()
		s = open()
		b.Logf("opened in %s, %+v", time.Since(begun), s.Stats())
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
