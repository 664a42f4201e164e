package journal

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/lo/journal/ondisk"
	"github.com/colonyfleet/colony/protocol"
)

// A Class says what may happen to an entry before it was delivered.
type Class = ondisk.Class

// The classes.
const (
	State = ondisk.State // superseded by a later entry of the same key
	Event = ondisk.Event // kept until it is trimmed
	Data  = ondisk.Data  // dropped oldest first under a bound, and counted
)

// MaxBody is the largest body of an Entry, in bytes.
const MaxBody = ondisk.MaxBody

// An Entry is what is appended.
type Entry struct {
	Class Class
	// Key names the state that a State entry supersedes, at most 1,024 bytes.
	// Empty: it supersedes nothing and is never superseded.
	Key string
	// Body is an encoded protocol.Event, at most MaxBody bytes.
	Body []byte
	// Reserve lets the entry use the room that is kept above MaxBytes for what
	// must be written for the journal to get emptier again.
	Reserve bool
}

// A Record is an entry with its sequence. Reserve is not stored.
type Record struct {
	Entry
	Seq uint64
	// UnixMillis is this machine's clock at Append; 0 in a superseded record.
	UnixMillis int64
	// Superseded says that Body is an empty event of kind protocol.Superseded,
	// and Class and Key are not known any more.
	Superseded bool
}

// Stats is a picture of a journal.
type Stats struct {
	Depth    uint64 `json:"depth"`    // records that are not trimmed
	Bytes    int64  `json:"bytes"`    // on disk, the trimmed ones of the oldest segment included
	MaxBytes int64  `json:"maxBytes"` // bound of the journal
	Segments int    `json:"segments"` // number of its files

	// OldestUnixMillis is when the oldest record that is not trimmed was appended;
	// 0 when there is none, or when it was superseded.
	OldestUnixMillis int64 `json:"oldestUnixMillis"`

	// Of this process:
	Appended     uint64 `json:"appended"`     // records
	Syncs        uint64 `json:"syncs"`        // group commits
	Refused      uint64 `json:"refused"`      // Appends answered with Unavailable
	Superseded   uint64 `json:"superseded"`   // records that a later one of the same key replaced
	Compactions  uint64 `json:"compactions"`  // segments rewritten
	Dropped      uint64 `json:"dropped"`      // Data records dropped under a bound
	DroppedBytes uint64 `json:"droppedBytes"` // size of the records that were dropped at the bound
	Lost         uint64 `json:"lost"`         // records that the disk did not keep
	Salvaged     uint64 `json:"salvaged"`     // segments that were rewritten because of that
}

// Options of a journal. The zero value is ready for use.
type Options struct {
	// MaxBytes bounds the bytes on disk. 0 means 1 GiB. A rewrite needs up to one
	// segment more for a moment, and 1/16 is kept on top for Reserve entries.
	MaxBytes int64
	// SegmentBytes is the size at which a segment is sealed. 0 means a sixteenth
	// of MaxBytes, but 128 KiB to 16 MiB, and a quarter of MaxBytes at most.
	SegmentBytes int64
	// MaxAge bounds the age of Data records: whole segments of older ones are
	// dropped, and counted, also while nothing is appended. Nothing younger is
	// dropped for its age, and nothing is older than the bound by a quarter. 0: no bound.
	MaxAge time.Duration
	// Disk is where the journal is; nil: the file system of the machine.
	Disk disk.FS
	// Now is the clock of the machine. Nil means time.Now. See Journal.Now.
	Now func() time.Time
	// Random names the epochs. Nil: the machine's.
	Random *random.Source
	// Logger may be nil.
	Logger *slog.Logger
}

func (o Options) withDefaults(dir string) Options {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 30
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = min(max(o.MaxBytes/16, 128<<10), max(o.MaxBytes/4, 1), 16<<20)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("component", "journal", "dir", dir)
	o.Disk = disk.Or(o.Disk)
	return o
}

// Journal is an open journal. Its methods may be called concurrently.
type Journal struct {
	// immutable
	dir  string
	opts Options
	fs   ondisk.Dir
	seed uint32 // of the checksums
	log  *slog.Logger
	lock io.Closer
	// damage is that of the trim mark at Open.
	damage *statefile.Damage

	// began is what Now said at Open, when the machine's clock said beganWall.
	began, beganWall time.Time

	requests chan *request
	closing  chan struct{} // closed by Close
	stopped  chan struct{} // closed when the writer has returned
	once     sync.Once
	closeErr error

	w writer // only the writer's goroutine

	mu sync.RWMutex // protects what follows, which the writer changes
	st state
}

// state is what readers see. Everything in it is durable.
type state struct {
	epoch    string
	previous protocol.PreviousEpoch // see Journal.Previous
	segments []*ondisk.Segment      // ascending; the last is the active one
	last     uint64
	trimmed  uint64
	opened   uint64 // last, at Open
	keys     map[string]keyed
	// salvaged holds the sequence of each announcement of damaged records, by its key,
	// while the journal has it.
	salvaged map[string]uint64
	stats    Stats
	changed  notify.Broadcast // last has grown

	// oldest is the time stamp of record oldestOf, for Stats. firsts are the stamps
	// of the records that Reads began with lately: a trim goes to the end of what
	// one of them gave, so that the oldest record is known without reading it.
	oldest   int64
	oldestOf uint64
	firsts   []stamped
}

// keyed is the newest State record of a key.
type keyed struct {
	seq  uint64
	size int64
}

// stamped is the time stamp of a record.
type stamped struct {
	seq    uint64
	millis int64
}

// supersededBody is what every superseded record reads as.
var supersededBody = protocol.Marshal(protocol.Event{Kind: protocol.Superseded})

// Append puts the entries into the journal, in order and next to each other, and
// returns the sequence of the last one when all are on disk. Concurrent Appends
// share one fsync.
//
// It fails with kind Unavailable when the byte bound or the disk is full, or the
// journal is closed: nothing was appended, and the same call may succeed later.
// It fails with kind Invalid for an entry that can never be appended. When ctx
// ends first, the entries may or may not be appended, and their bodies must not
// be changed after.
func (j *Journal) Append(ctx context.Context, entries ...Entry) (uint64, error) {
	for i := range entries {
		if err := entries[i].check(); err != nil {
			return 0, err
		}
	}
	if len(entries) == 0 {
		return j.Last(), nil
	}
	return j.do(ctx, &request{entries: entries, done: make(chan struct{})})
}

func (e *Entry) check() error {
	switch {
	case e.Class < State || e.Class > Data:
		return protocol.Errorf(protocol.Invalid, "journal: entry of unknown class %d", e.Class)
	case len(e.Key) > ondisk.MaxKey:
		return protocol.Errorf(protocol.Invalid, "journal: key of %d bytes: the limit is %d", len(e.Key), ondisk.MaxKey)
	case len(e.Body) > MaxBody:
		return protocol.Errorf(protocol.Invalid, "journal: event of %d bytes: the limit is %d", len(e.Body), MaxBody)
	}
	return nil
}

// AppendState appends one State entry that may use the reserve: for events
// without which the journal could not be delivered, and so not be emptied.
func (j *Journal) AppendState(ctx context.Context, key string, body []byte) (uint64, error) {
	return j.Append(ctx, Entry{Class: State, Key: key, Body: body, Reserve: true})
}

// Trim forgets everything up to through, which the tier above has on disk. What
// is past Last is ignored. A crash may lose the mark, which only costs a resend.
func (j *Journal) Trim(through uint64) error {
	_, err := j.do(context.Background(), &request{control: func(w *writer) error { return w.trim(through) }, done: make(chan struct{})})
	return err
}

// Renew gives the journal a new epoch and keeps its records and their numbers:
// for a journal that was put back from a copy, and so gives numbers a second
// time. have is the position that the CO holds of the old epoch: as far as it goes, the
// records that were there at Open are trimmed, because they are older than the copy.
func (j *Journal) Renew(have uint64) error {
	_, err := j.do(context.Background(), &request{control: func(w *writer) error { return w.renew(have) }, done: make(chan struct{})})
	return err
}

// do hands a request to the writer and waits for its end.
func (j *Journal) do(ctx context.Context, r *request) (uint64, error) {
	select {
	case j.requests <- r:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-j.closing:
		return 0, errClosed()
	}
	select {
	case <-r.done:
		return r.last, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-j.stopped:
		select {
		case <-r.done:
			return r.last, r.err
		default:
			return 0, errClosed()
		}
	}
}

func errClosed() error { return protocol.Errorf(protocol.Unavailable, "journal: closed") }

// Now returns the clock that stamps the records. The clock does not go backwards while there are
// records. It starts at the later one of two times, the machine's clock at Open and the newest
// stamp that is not trimmed, and advances with the time that passes. So the age of a record is
// never negative, and a change of the machine's clock does not shorten it; the time that the
// machine was off may be missing from it. Use this clock also for times in the bodies whose age
// matters.
func (j *Journal) Now() time.Time {
	return j.began.Add(j.opts.Now().Sub(j.beganWall))
}

// Wait returns nil once Last is greater than after.
func (j *Journal) Wait(ctx context.Context, after uint64) error {
	for {
		j.mu.RLock()
		last, changed := j.st.last, j.st.changed.C()
		j.mu.RUnlock()
		if last > after {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-j.closing:
			return errClosed()
		}
	}
}

// Epoch names this journal: 32 hexadecimal digits, drawn when it was made.
func (j *Journal) Epoch() string {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.st.epoch
}

// Previous is the epoch with whose numbers that of the journal goes on: where the trim mark was lost, and after Renew. Zero: there
// is none that is known.
func (j *Journal) Previous() protocol.PreviousEpoch {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.st.previous
}

// Last returns the sequence of the newest durable record; 0 when there was none ever.
func (j *Journal) Last() uint64 {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.st.last
}

// Trimmed returns the highest sequence that is forgotten.
func (j *Journal) Trimmed() uint64 {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.st.trimmed
}

// Position returns Epoch, Trimmed and Last of one moment, and what Last was when
// the journal was opened.
func (j *Journal) Position() (epoch string, trimmed, last, opened uint64) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.st.epoch, j.st.trimmed, j.st.last, j.st.opened
}

// Close ends the writer and gives the directory free. Appends that wait fail
// with kind Unavailable. A second Close does nothing.
func (j *Journal) Close() error {
	j.once.Do(func() {
		close(j.closing)
		<-j.stopped
		j.closeErr = j.lock.Close()
	})
	return j.closeErr
}

// Damage is what Open found of a trim mark that was lost while there were records: what was at the end of the journal may be
// lost, too. Nil: nothing.
func (j *Journal) Damage() *statefile.Damage { return j.damage }
