// Package keeper maintains the audit: it gives rows their places in the chain, writes signed checkpoints of the
// chain into a file, and finds the commits of operations that have no outcome.
package keeper

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/co/audit"
	"github.com/colonyfleet/colony/co/repo/git/since"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/retry"
)

// A Store is the record. Errors are of the protocol's kinds.
type Store interface {
	// Add appends a row.
	Add(ctx context.Context, r audit.Row) error
	// Seal gives the oldest rows that have none their places in the chain, and returns the end of the chain and how many
	// rows it took.
	Seal(ctx context.Context) (position int64, hash audit.Hash, sealed int, err error)
	// Open returns the oldest intents, up to n, that have no outcome, nor what stands for one, and were written before a time.
	Open(ctx context.Context, before time.Time, n int) ([]string, error)
	Pushed
}

// Pushed is what the record has of commits that no operation made.
type Pushed interface {
	// PushedTo returns the commit up to which they are recorded; empty: none was yet.
	PushedTo(ctx context.Context) (commit string, err error)
	// AddPushes adds rows, and notes that all up to the commit to are recorded; nothing where that was not from any more.
	AddPushes(ctx context.Context, from, to string, rows []audit.Row) error
	// CommitsOf returns the commits of intents that there are; nil for one that has no outcome yet.
	CommitsOf(ctx context.Context, intents []string) (map[string][]string, error)
}

// Options are what a keeper needs. All are required but for Answered.
type Options struct {
	Store Store
	// Lock waits until this is the only keeper. The context that it returns ends when the lock is lost; release gives it back.
	Lock func(ctx context.Context) (held context.Context, release func(), err error)
	// Commits returns the last commits of the deployments repo that name an intent, by the intent.
	Commits func(ctx context.Context) (map[string][]string, error)
	// Pushes returns the commits of the deployments repo after one, which may be empty, and up to most of them.
	Pushes func(ctx context.Context, after string, most int) (since.Commits, error)
	// Key signs checkpoints, which are appended to File.
	Key  ed25519.PrivateKey
	File string
	// Disk is where File lies.
	Disk disk.FS
	// Answered is how long an operation may take before it is said that it has no outcome. Default 1 h.
	Answered time.Duration
	Logger   *slog.Logger
}

const (
	sealEvery       = time.Second
	checkpointEvery = time.Minute
	// settleAtOnce is how many operations without an outcome get one at a time.
	settleAtOnce = 100
	settleWait   = 10 * time.Second
	answered     = time.Hour
	minRetry     = time.Second
	maxRetry     = 30 * time.Second
	filePerm     = 0o600
	dirPerm      = 0o700
)

// A Keeper is created by New; then call Run.
type Keeper struct {
	o Options
	// What follows belongs to the goroutine of Run.
	checkpoint int64 // position of the last checkpoint
	checked    time.Time
	looked     time.Time // for what was pushed
}

// New returns a keeper that does nothing yet.
func New(o Options) *Keeper {
	if o.Answered <= 0 {
		o.Answered = answered
	}
	return &Keeper{o: o}
}

// Run works until ctx ends. While the record or the file cannot be written, it tries again.
func (k *Keeper) Run(ctx context.Context) {
	tries := &retry.Backoff{Policy: retry.Policy{Min: minRetry, Max: maxRetry, Jitter: 1}}
	for ctx.Err() == nil {
		held, release, err := k.o.Lock(ctx)
		if err == nil {
			err = k.keep(held, tries.Reset)
			release()
		}
		if err != nil && ctx.Err() == nil {
			k.o.Logger.WarnContext(ctx, "the audit is written, and not sealed", "err", err)
			_ = tries.Wait(ctx) // its end ends the loop, too
		}
	}
}

// keep works until ctx ends, which is no error, or something fails; worked is called after each turn.
func (k *Keeper) keep(ctx context.Context, worked func()) error {
	tick := time.NewTicker(sealEvery)
	defer tick.Stop()
	for {
		err := k.turn(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		worked()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// turn seals what is not sealed, and once in a while writes a checkpoint.
func (k *Keeper) turn(ctx context.Context) error {
	position, hash, sealed, err := k.o.Store.Seal(ctx)
	for ; err == nil && sealed > 0; position, hash, sealed, err = k.o.Store.Seal(ctx) {
	}
	if err == nil && time.Since(k.looked) >= pushesEvery {
		k.looked = time.Now()
		if err := k.pushes(ctx); err != nil && ctx.Err() == nil { // the deployments repo may be away
			k.o.Logger.WarnContext(ctx, "what was pushed to the deployments repo is not in the audit yet", "err", err)
		}
	}
	if err != nil || time.Since(k.checked) < checkpointEvery {
		return err
	}
	if position > k.checkpoint {
		c := audit.NewCheckpoint(k.o.Key, time.Now(), position, hash)
		if err := k.write(c); err != nil {
			return fmt.Errorf("write a checkpoint of the audit to %s: %w", k.o.File, err)
		}
		k.checkpoint = position
		k.o.Logger.InfoContext(ctx, "audit checkpoint", "position", c.Position, "hash", c.Hash)
	}
	k.checked = time.Now()
	// The deployments repo may be unavailable, which does not prevent sealing.
	if err := k.settle(ctx); err != nil && ctx.Err() == nil {
		k.o.Logger.WarnContext(ctx, "operations without an outcome are not settled in the audit yet", "err", err)
	}
	return nil
}

// write appends a checkpoint to the whole lines of the file.
func (k *Keeper) write(c audit.Checkpoint) (err error) {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := k.o.Disk.MkdirAll(filepath.Dir(k.o.File), dirPerm); err != nil {
		return err
	}
	f, err := k.o.Disk.Open(k.o.File, os.O_RDWR|os.O_CREATE, fs.FileMode(filePerm))
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	end, err := wholeLines(f)
	if err != nil {
		return err
	}
	if err := f.Truncate(end); err != nil {
		return err
	}
	if _, err := f.WriteAt(append(line, '\n'), end); err != nil {
		return err
	}
	return f.Sync()
}

// mostLine bounds the length of a line of the file, in bytes.
const mostLine = 4096

// wholeLines returns where the last whole line of a file ends: what is behind it was torn off.
func wholeLines(f disk.File) (end int64, err error) {
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	last := make([]byte, min(size, mostLine))
	if _, err := f.ReadAt(last, size-int64(len(last))); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return size - int64(len(last)) + int64(bytes.LastIndexByte(last, '\n')+1), nil
}

// settle says of operations that have no outcome, as a CO ended or could not write it, which commits name them.
func (k *Keeper) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	open, err := k.o.Store.Open(ctx, time.Now().Add(-k.o.Answered), settleAtOnce)
	if err != nil || len(open) == 0 {
		return err
	}
	commits, err := k.o.Commits(ctx)
	if err != nil {
		return fmt.Errorf("look for the commits of operations that have no outcome: %w", err)
	}
	for _, id := range open {
		row := audit.Row{Kind: audit.Settled, Of: id, Commits: commits[id], Detail: "no outcome was recorded; these commits name the operation"}
		if len(row.Commits) == 0 {
			row.Detail = "no outcome was recorded; none of the last commits of the deployments repo names the operation"
		}
		if err := k.o.Store.Add(ctx, audit.NewRow(time.Now(), row)); err != nil {
			return err
		}
	}
	return nil
}
