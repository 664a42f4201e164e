package ondisk

import (
	"errors"
	"os"

	"github.com/colonyfleet/colony/internal/disk"
)

// ChunkSize is how much of a file is written, or copied, at once, in bytes.
const ChunkSize = 1 << 20

// Rewriter writes a segment anew under a temporary name: the records that stay, and runs
// of tombstones for the others. One goroutine uses it, and ends it with Finish or Abort.
type Rewriter struct {
	f    disk.File
	s    *Segment
	buf  []byte
	off  int64  // of buf in the file
	run  uint64 // first tombstone of the pending run
	next uint64 // the next sequence to write
	err  error
}

// NewRewriter begins the segment from first to last under a temporary name.
func NewRewriter(fs Dir, first, last uint64, seed uint32) (*Rewriter, error) {
	f, err := fs.Open(SegmentName(first)+TempExt, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, err
	}
	s := &Segment{First: first, Last: last, Seed: seed, Scanned: true}
	return &Rewriter{f: f, s: s, buf: SegmentHeader(first, last, s.Seed), run: first, next: first}, nil
}

// Skip leaves out everything before sequence seq that was not kept.
func (r *Rewriter) Skip(seq uint64) { r.next = max(r.next, seq) }

// Keep adds a record, whose sequence is above all before it.
func (r *Rewriter) Keep(f *Frame) {
	r.flushRun()
	r.s.Note(Mark{f.Seq, r.off + int64(len(r.buf))})
	alone := *f
	alone.Flags &^= FlagContinues // all of a rewritten segment is durable
	r.buf = AppendFrame(r.buf, &alone, r.s.Seed)
	r.next = f.Last() + 1
	r.run = r.next
	r.s.Stamp(f.Millis)
	if f.Class == Data {
		r.s.Data += int64(f.Size)
	}
	if len(r.buf) >= ChunkSize {
		r.flush()
	}
}

func (r *Rewriter) flushRun() {
	if r.run < r.next {
		r.s.Note(Mark{r.run, r.off + int64(len(r.buf))})
		r.buf = AppendRun(r.buf, r.run, r.next-r.run, r.s.Seed)
		r.run = r.next
	}
}

func (r *Rewriter) flush() {
	if r.err == nil {
		_, r.err = r.f.WriteAt(r.buf, r.off)
	}
	r.off += int64(len(r.buf))
	r.buf = r.buf[:0]
}

// Finish makes the file durable under its temporary name and closes it.
func (r *Rewriter) Finish() error {
	r.Skip(r.s.Last + 1)
	r.flushRun()
	r.flush()
	r.s.Size = r.off
	if r.err == nil {
		r.err = r.f.Sync()
	}
	return errors.Join(r.err, r.f.Close())
}

// Abort closes the file, which is not finished.
func (r *Rewriter) Abort() error { return r.f.Close() }

// Result is the segment that is being written; its size is known once it is finished.
func (r *Rewriter) Result() *Segment { return r.s }
