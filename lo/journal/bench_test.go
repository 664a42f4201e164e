package journal

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
)

// payload is an event of the usual size.
var payload = make([]byte, 200)

// BenchmarkAppend measures durable appends from 1, 10 and 100 goroutines.
func BenchmarkAppend(b *testing.B) {
	for _, appenders := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("appenders=%d", appenders), func(b *testing.B) {
			j, err := Open(b.TempDir(), Options{MaxBytes: 8 << 30})
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			before := j.Stats()
			spread(b, appenders, func() error {
				_, err := j.Append(context.Background(), Entry{Class: Event, Body: payload})
				return err
			})
			s := j.Stats()
			b.ReportMetric(float64(s.Appended-before.Appended)/float64(s.Syncs-before.Syncs), "records/sync")
		})
	}
}

// slowDisk takes a while for each fsync, as an SD card or a busy hard disk does.
type slowDisk struct{ disk.FS }

type slowFile struct{ disk.File }

const slowSync = 10 * time.Millisecond

func (d slowDisk) Open(path string, flag int, perm fs.FileMode) (disk.File, error) {
	f, err := d.FS.Open(path, flag, perm)
	return slowFile{f}, err
}

func (f slowFile) Sync() error {
	<-time.After(slowSync)
	return f.File.Sync()
}

// BenchmarkAppendSlowDisk is BenchmarkAppend where an fsync takes 10 ms.
func BenchmarkAppendSlowDisk(b *testing.B) {
	for _, appenders := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("appenders=%d", appenders), func(b *testing.B) {
			j, err := Open(b.TempDir(), Options{MaxBytes: 8 << 30, Disk: slowDisk{disk.OS}})
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			spread(b, appenders, func() error {
				_, err := j.Append(context.Background(), Entry{Class: Event, Body: payload})
				return err
			})
		})
	}
}

// spread runs do b.N times on n goroutines.
func spread(b *testing.B, n int, do func() error) {
	b.Helper()
	var next atomic.Int64
	errs := make(chan error, n)
	b.ResetTimer()
	for range n {
		go func() {
			for next.Add(1) <= int64(b.N) {
				if err := do(); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkSyncPerRecord is the baseline: a file, and an fsync for each record.
func BenchmarkSyncPerRecord(b *testing.B) {
	f, err := disk.OS.Open(filepath.Join(b.TempDir(), "log"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	size := int64(0)
	spread(b, 1, func() error {
		if _, err := f.WriteAt(payload, size); err != nil {
			return err
		}
		size += int64(len(payload))
		return f.Sync()
	})
}

// BenchmarkDrain reads and trims in batches, at two depths.
func BenchmarkDrain(b *testing.B) {
	for _, depth := range []int{1_000, 1_000_000} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			j, _ := backlog(b, depth)
			defer j.Close()
			n := 0
			b.ResetTimer()
			for b.Loop() {
				records, err := j.Read(j.Trimmed(), 1000, 1<<20)
				if err != nil {
					b.Fatal(err)
				}
				if len(records) == 0 {
					b.StopTimer()
					fill(b, j, depth)
					b.StartTimer()
					continue
				}
				n += len(records)
				if err := j.Trim(records[len(records)-1].Seq); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkOpen opens a journal with a backlog.
func BenchmarkOpen(b *testing.B) {
	for _, depth := range []int{1_000, 1_000_000, 4_000_000} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			j, dir := backlog(b, depth)
			bytes := j.Stats().Bytes
			if err := j.Close(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				began := time.Now()
				j, err := Open(dir, Options{MaxBytes: 8 << 30, SegmentBytes: 16 << 20})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "ms/open")
				if err := j.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(bytes)/1e6, "MB")
		})
	}
}

func backlog(b *testing.B, depth int) (*Journal, string) {
	b.Helper()
	dir := b.TempDir()
	j, err := Open(dir, Options{MaxBytes: 8 << 30, SegmentBytes: 16 << 20})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, j, depth)
	return j, dir
}

func fill(b *testing.B, j *Journal, n int) {
	b.Helper()
	entries := make([]Entry, 1000)
	for i := range entries {
		entries[i] = Entry{Class: Event, Body: payload}
	}
	for ; n > 0; n -= len(entries) {
		if _, err := j.Append(context.Background(), entries...); err != nil {
			b.Fatal(err)
		}
	}
}
