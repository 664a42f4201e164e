package lo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/lo/journal"
	"github.com/colonyfleet/colony/protocol"
)

// keepFor is how long the journal keeps what the CO has. The records of the nodes
// are stored as often, and not with each report and not with each answer of the CO:
// a record is two flushes of the disk.
const keepFor = time.Second

// A trimmer journal is the site's as the uplink sees it: what it forgets, the stored
// records know. Until then it is out of the uplink's sight, and a crash only costs
// a question to the CO.
type trimmer struct {
	*journal.Journal
	site *site
	acks notify.Signal // the CO has more

	mu    sync.Mutex
	epoch string // of acked
	acked uint64 // the CO has it
}

func newTrimmer(j *journal.Journal, s *site) *trimmer {
	return &trimmer{Journal: j, site: s, acks: notify.New()}
}

// Position is the journal's, as if what the CO has were forgotten.
func (k *trimmer) Position() (epoch string, trimmed, last, opened uint64) {
	epoch, trimmed, last, opened = k.Journal.Position()
	return epoch, max(trimmed, k.done(epoch)), last, opened
}

func (k *trimmer) done(epoch string) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.epoch != epoch {
		return 0
	}
	return k.acked
}

// Bodies are the journal's, without those that the CO has.
func (k *trimmer) Bodies(after uint64, maxRecords, maxBytes int) (uint64, [][]byte, error) {
	return k.Journal.Bodies(max(after, k.done(k.Journal.Epoch())), maxRecords, maxBytes)
}

// Backlog is the journal's; there is nothing old where the CO has everything.
func (k *trimmer) Backlog() (protocol.Backlog, time.Time) {
	b, now := k.Journal.Backlog()
	if _, trimmed, last, _ := k.Position(); trimmed >= last {
		b.OldestMillis = 0
	}
	return b, now
}

// Trim notes what the CO has. run forgets it.
func (k *trimmer) Trim(through uint64) error {
	epoch, _, last, _ := k.Journal.Position()
	k.mu.Lock()
	if k.epoch != epoch {
		k.epoch, k.acked = epoch, 0
	}
	k.acked = max(k.acked, min(through, last))
	k.mu.Unlock()
	k.acks.Notify()
	return nil
}

// Renew stores all records first, for a new epoch is replayed from its beginning.
func (k *trimmer) Renew(have uint64) error {
	if err := k.site.saveThrough(math.MaxUint64); err != nil {
		return err
	}
	return k.Journal.Renew(have)
}

// Salvage stores all records first, for what it gives up is not replayed.
func (k *trimmer) Salvage() (uint64, error) {
	if err := k.site.saveThrough(math.MaxUint64); err != nil {
		return 0, err
	}
	return k.Journal.Salvage()
}

// run forgets what the CO has, until ctx ends, and then once more.
func (k *trimmer) run(ctx context.Context) {
	for ctx.Err() == nil {
		if k.acks.Wait(ctx) == nil {
			_ = retry.Sleep(ctx, keepFor) // at its end, too, there is something to forget
		}
		if err := k.forget(); err != nil && !errors.Is(err, context.Canceled) {
			k.site.log.WarnContext(ctx, "journal keeps what the co has, because records of nodes could not be stored", "err", err)
			k.acks.Notify() // another try
		}
	}
}

// forget stores the records that do not know yet what the CO has, and trims the
// journal. One record stands for all reports of its node since the last time.
func (k *trimmer) forget() error {
	epoch, trimmed, _, _ := k.Journal.Position()
	through := k.done(epoch)
	if through <= trimmed {
		return nil
	}
	if err := k.site.saveThrough(through); err != nil {
		return err
	}
	if k.Journal.Epoch() != epoch {
		return nil // what was noted is of the epoch before
	}
	return k.Journal.Trim(through)
}

// saveThrough stores the records that lack an event up to a sequence.
func (s *site) saveThrough(through uint64) error {
	for _, n := range s.sorted() {
		n.mu.Lock()
		lacks := n.unsaved || n.firstUnsaved != 0 && n.firstUnsaved <= through
		n.mu.Unlock()
		if !lacks {
			continue
		}
		if err := s.flush(n); err != nil {
			return fmt.Errorf("store record of node %s: %w", n.id, err)
		}
	}
	return nil
}
