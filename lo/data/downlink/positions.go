package downlink

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/colonyfleet/colony/internal/atomicfile"
)

const (
	filePerm = 0o600
	dirPerm  = 0o700
	// rewriteAt is the size of the file of places at which it is written anew.
	rewriteAt = 256 << 10
	// headBytes are the length and the checksum in front of each record.
	headBytes = 8
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

// positions is the file of places: a record of a few bytes and one flush for each
// batch. The last record of a lane counts; one that a crash tore counts as none.
type positions struct {
	path string
	f    *os.File
	size int64
	all  map[string]position
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func openPositions(dir string) (*positions, error) {
	if err := os.MkdirAll(dir, dirPerm); err != nil {
		return nil, fmt.Errorf("create downlink directory: %w", err)
	}
	if err := atomicfile.Clean(dir); err != nil {
		return nil, fmt.Errorf("clean downlink directory: %w", err)
	}
	p := &positions{path: filepath.Join(dir, "places"), all: map[string]position{}}
	b, err := os.ReadFile(p.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read places: %w", err)
	}
	for len(b) >= headBytes {
		n, sum := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if n > maxRecord || int(n) > len(b)-headBytes {
			break
		}
		body := b[headBytes : headBytes+n]
		var v position
		if crc32.Checksum(body, castagnoli) != sum || json.Unmarshal(body, &v) != nil {
			break
		}
		p.note(v)
		b = b[headBytes+n:]
	}
	for stream, v := range p.all {
		if v.Marking {
			delete(p.all, stream)
		}
	}
	return p, p.rewrite()
}

func (p *positions) note(v position) {
	if v.Removed {
		delete(p.all, v.Stream)
	} else {
		p.all[v.Stream] = v
	}
}

func record(v position) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode place: %w", err)
	}
	if len(body) > maxRecord {
		return nil, fmt.Errorf("place of lane %.64q has %d bytes", v.Stream, len(body))
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
	return append(b, body...), nil
}

// save makes v the place of its lane; on return that is durable.
func (p *positions) save(v position) error {
	b, err := record(v)
	if err != nil {
		return err
	}
	if p.f == nil || p.size > rewriteAt {
		if err := p.rewrite(); err != nil {
			return err
		}
	}
	if _, err := p.f.WriteAt(b, p.size); err != nil {
		return p.broken(fmt.Errorf("write place: %w", err))
	}
	if err := p.f.Sync(); err != nil {
		return p.broken(fmt.Errorf("flush place: %w", err))
	}
	p.size += int64(len(b))
	p.note(v)
	return nil
}

// broken gives up the file after an error: what it holds beyond the records that
// were flushed is not known, so that the next save writes it anew.
func (p *positions) broken(err error) error {
	err = errors.Join(err, p.f.Close())
	p.f = nil
	return err
}

func (p *positions) rewrite() error {
	var b []byte
	for _, stream := range slices.Sorted(maps.Keys(p.all)) {
		r, err := record(p.all[stream])
		if err != nil {
			return err
		}
		b = append(b, r...)
	}
	if err := atomicfile.Write(p.path, b, filePerm); err != nil {
		return fmt.Errorf("write places: %w", err)
	}
	f, err := os.OpenFile(p.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open places: %w", err)
	}
	if p.f != nil {
		_ = p.f.Close() // the file that was replaced; all in it was flushed
	}
	p.f, p.size = f, int64(len(b))
	return nil
}

func (p *positions) close() error {
	if p.f == nil {
		return nil
	}
	return p.f.Close()
}
