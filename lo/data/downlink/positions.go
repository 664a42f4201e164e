package downlink

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/internal/statefile"
)

const (
	dirPerm = 0o700
	// rewriteAt is the size of the file of places at which it is written anew.
	rewriteAt = 256 << 10
	maxRecord = 4 << 10
)

// A position is how far a lane was taken.
type position struct {
	Stream string `json:"lane"`
	Epoch  string `json:"epoch,omitempty"`
	Seq    uint64 `json:"seq,omitempty"`
	// Marking is set between RetainedBegin and RetainedEnd. A lane that is found so
	// after a restart has lost its marks, and begins anew.
	Marking bool `json:"marking,omitempty"`
	// Removed takes the lane off the list.
	Removed bool `json:"gone,omitempty"`
}

// positions is the log of places: a record of a few bytes and one flush for each batch.
// The last record of a lane counts. After damage no place is known: the CO then sends
// again what should be retained. An older place would have it send from there, and
// what it has forgotten since would count as dropped.
type positions struct {
	log    *recordlog.Log
	all    map[string]position
	damage *statefile.Damage
}

func openPositions(dir string) (*positions, error) {
	if err := os.MkdirAll(dir, dirPerm); err != nil {
		return nil, fmt.Errorf("create downlink directory: %w", err)
	}
	if err := atomicfile.Clean(dir); err != nil {
		return nil, fmt.Errorf("clean downlink directory: %w", err)
	}
	p := &positions{all: map[string]position{}}
	log, found, err := recordlog.Open(recordlog.Options{
		Identity: statefile.Identity{Role: "lo/places"}, Path: filepath.Join(dir, "places"), MaxRecord: maxRecord, Old: oldPlaces,
	}, func(body []byte, _ uint64) error {
		var v position
		if err := json.Unmarshal(body, &v); err != nil {
			return err
		}
		p.note(v)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open places: %w", err)
	}
	p.log, p.damage = log, found.Damage
	if found.Damage != nil && found.Damage.Lost > 0 {
		clear(p.all)
	}
	for stream, v := range p.all {
		if v.Marking {
			delete(p.all, stream)
		}
	}
	return p, p.rewrite()
}

// oldPlaces reads a file of before release 0.1.0, which had no header: a record was a
// length and a CRC-32C, 4 bytes each, big-endian, and JSON. It ended at the first
// record that was not whole.
func oldPlaces(b []byte) (records [][]byte, lost uint64, ok bool) {
	const head = 8
	table := crc32.MakeTable(crc32.Castagnoli)
	for len(b) >= head {
		n := binary.BigEndian.Uint32(b)
		if n > maxRecord || int(n) > len(b)-head || crc32.Checksum(b[head:head+n], table) != binary.BigEndian.Uint32(b[4:]) {
			break
		}
		records = append(records, b[head:head+n])
		b = b[head+n:]
	}
	return records, 0, len(records) > 0
}

func (p *positions) note(v position) {
	if v.Removed {
		delete(p.all, v.Stream)
	} else {
		p.all[v.Stream] = v
	}
}

func record(v position) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode place of lane %.64q: %w", v.Stream, err)
	}
	return b, nil
}

// save makes v the place of its lane; on return that is durable.
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

// rewrite puts the places alone into the log.
func (p *positions) rewrite() error {
	var records [][]byte
	for _, stream := range slices.Sorted(maps.Keys(p.all)) {
		r, err := record(p.all[stream])
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	return p.log.Replace(records)
}

func (p *positions) close() error { return p.log.Close() }
