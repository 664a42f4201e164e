package downlink

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol/stream"
)

const (
	dirPerm = 0o700
	// rewriteAt is the size in bytes of the file of positions at which it is written anew.
	rewriteAt = 256 << 10
	// maxRecord is in bytes. It has room for all retired epochs of a stream, each byte
	// of which JSON may write as six.
	maxRecord = 32 << 10
)

// A position is how far a stream was received.
type position struct {
	Stream string `json:"stream"`
	stream.Position
	// Marking is set between RetainedBegin and RetainedEnd. A stream that is found so
	// after a restart has lost its marks: it begins anew, and keeps its retired epochs.
	Marking bool `json:"marking,omitempty"`
	// Removed says that the stream was removed.
	Removed bool `json:"removed,omitempty"`
}

// positions is the log of positions: a record of a few bytes and one flush for each
// batch. The last record of a stream counts. After damage no position is known: the CO
// then sends again what should be retained. An older position would have it send from
// there, and what it has forgotten since would count as dropped.
type positions struct {
	log    *recordlog.Log
	all    map[string]position
	damage *statefile.Damage
}

func openPositions(d disk.FS, dir string) (*positions, error) {
	if err := d.MkdirAll(dir, dirPerm); err != nil {
		return nil, fmt.Errorf("create downlink directory: %w", err)
	}
	if err := atomicfile.Clean(d, dir); err != nil {
		return nil, fmt.Errorf("clean downlink directory: %w", err)
	}
	p := &positions{all: map[string]position{}}
	log, found, err := recordlog.Open(recordlog.Options{
		Disk: d, Identity: statefile.Identity{Role: "lo/positions"}, Path: filepath.Join(dir, "positions"), MaxRecord: maxRecord,
	}, func(body []byte, _ uint64) error {
		var v position
		if err := json.Unmarshal(body, &v); err != nil {
			return err
		}
		p.note(v)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open positions: %w", err)
	}
	p.log, p.damage = log, found.Damage
	if found.Damage != nil && found.Damage.Lost > 0 {
		clear(p.all)
	}
	for name, v := range p.all {
		if v.Marking {
			p.all[name] = position{Stream: name, Position: stream.Position{Retired: v.Retired}}
		}
	}
	if err := p.rewrite(); err != nil && !disk.IsFull(err) { // else the log goes on as it is, or is Broken
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *positions) note(v position) {
	switch {
	case v.Stream == "":
		// It names no stream, so it holds for none. The CO sends again what should be retained.
	case v.Removed:
		delete(p.all, v.Stream)
	default:
		p.all[v.Stream] = v
	}
}

func record(v position) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode position of stream %.64q: %w", v.Stream, err)
	}
	if len(b) > maxRecord {
		return nil, fmt.Errorf("position of stream %.64q has %d bytes", v.Stream, len(b))
	}
	return b, nil
}

// save makes v the position of its stream; on return that is durable.
func (p *positions) save(v position) error {
	b, err := record(v)
	if err != nil {
		return err
	}
	if p.log.Broken() || p.log.Size() > rewriteAt {
		if err := p.rewrite(); err != nil {
			return err
		}
	}
	if err := p.log.Append(b); err != nil {
		return err
	}
	if err := p.log.Sync(); err != nil {
		return err
	}
	p.note(v)
	return nil
}

// rewrite puts the positions alone into the log.
func (p *positions) rewrite() error {
	var records [][]byte
	for _, name := range slices.Sorted(maps.Keys(p.all)) {
		r, err := record(p.all[name])
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	return p.log.Replace(records)
}

func (p *positions) close() error { return p.log.Close() }
