package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/bench/link/ledger"
	"github.com/colonyfleet/colony/bench/link/process"
	"github.com/colonyfleet/colony/internal/impair"
)

// A link carries messages from a site's broker to the counter at the far end, over a network that
// the scenario makes bad.
type link struct {
	// publish is the address of the site's broker.
	publish string
	// topic is that of the n-th node.
	topic func(n int) string
	// near and far are the processes of the two ends, in the order of their start.
	near, far []*process.Process
	wan       *impair.Proxy
	// nearDir holds what the near end keeps on disk.
	nearDir  string
	consumer consumer
	// farCPU returns what serves the far end beside its processes; nil: nothing does.
	farCPU func() time.Duration
	// patience is how long after the link's return nothing may arrive before the
	// rest counts as lost.
	patience time.Duration
}

// A consumer receives at the CO's end and adds to the ledger.
type consumer interface {
	// start begins to receive. It returns when nothing can be missed any more.
	start(ctx context.Context, l *ledger.Ledger) error
	// settle brings the ledger up to what has arrived, and returns how many messages
	// gave way to a later one of their key, as the link declares.
	settle(ctx context.Context) (superseded int, err error)
	// perMessage is how much the ledger's reached grows with a message.
	perMessage() float64
	stop()
}

// A kind is a sort of link that can be measured.
type kind struct {
	name, about string
	make        func(ctx context.Context, b *bench, dir, nearDir string, number int) (*link, error)
}

// kinds are those of the bench, in the order of the table.
func kinds() []kind {
	return []kind{
		{"colony", "Colony, reports of nodes", newColony},
		{"colony-data", "Colony, machine data", newColonyData},
		{"bridge", "Mosquitto bridge, default settings", newBridge(false)},
		{"bridge-tuned", "Mosquitto bridge, tuned", newBridge(true)},
		{"autopaho-file", "autopaho with file queue", newAutopaho("file")},
		{"autopaho-memory", "autopaho with memory queue", newAutopaho("memory")},
	}
}

// up starts both ends and the consumer.
func (l *link) up(ctx context.Context, led *ledger.Ledger) error {
	for _, p := range l.far {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	if err := l.consumer.start(ctx, led); err != nil {
		return fmt.Errorf("start consumer: %w", err)
	}
	for _, p := range l.near {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// kill ends processes as a power cut would.
func kill(list []*process.Process) {
	for _, p := range list {
		if p.Cmd != nil {
			// First a signal to all, so that none sees the other go.
			_ = p.Cmd.Process.Signal(syscall.SIGSTOP)
		}
	}
	for _, p := range list {
		p.End(syscall.SIGKILL)
	}
}

func startAll(ctx context.Context, list []*process.Process) error {
	for _, p := range list {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// down ends everything.
func (l *link) down() error {
	l.consumer.stop()
	for _, p := range append(l.near, l.far...) {
		p.End(syscall.SIGTERM)
	}
	return l.wan.Close()
}

// used sums up what processes used.
func used(list []*process.Process) (u process.Usage) {
	for _, p := range list {
		u = u.Plus(p.Used)
	}
	return u
}

// logs returns the last lines of every process, for a person that looks for a fault.
func (l *link) logs() string {
	out := ""
	for _, p := range append(l.near, l.far...) {
		out += "--- " + p.Name + "\n" + process.Tail(p.Log) + "\n"
	}
	return out
}

// mountSmall puts a file system of that many bytes at dir.
func mountSmall(dir string, size int) error {
	err := syscall.Mount("colony-bench", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", size))
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("mount a small file system for the scenario of the full disk: %w: run as root", err)
	}
	if err != nil {
		return fmt.Errorf("mount a small file system on %s: %w", dir, err)
	}
	return nil
}

// fill leaves only so many bytes free on the file system of dir, and returns what
// gives the rest back.
func fill(dir string, leave int64) (free func() error, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("look at the small file system: %w", err)
	}
	path := dir + "/ballast"
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("fill the disk: %w", err)
	}
	defer f.Close()
	size := int64(st.Bavail)*st.Bsize - leave
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, max(1, size)); err != nil {
		return nil, fmt.Errorf("fill the disk: %w", err)
	}
	return func() error { return os.Remove(path) }, nil
}
