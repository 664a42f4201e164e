package ondisk

import (
	"encoding/binary"
	"errors"
	"hash/fnv"

	"github.com/colonyfleet/colony/internal/disk"
)

// EachWhole calls do for every record of a sealed segment that can be read, and gap for
// the sequences in between and the bytes that they occupied. It fails where f cannot be
// read now.
func EachWhole(f disk.File, s *Segment, do func(*Frame), gap func(first, last uint64, bytes int64)) error {
	end, err := f.Size()
	if err != nil {
		return err
	}
	sc := NewScanner(f, s, Mark{s.First, HeadSize}, min(end, s.Size))
	for {
		at := sc.At
		fr, more, err := sc.Next()
		switch {
		case err == nil && more && fr.Last() <= s.Last:
			do(&fr)
			continue
		case err != nil && !errors.Is(err, ErrTorn):
			return err
		case err != nil && sc.Resync(s.Last):
			gap(at.Seq, sc.At.Seq-1, sc.At.Off-at.Off)
			continue
		}
		if at.Seq <= s.Last {
			gap(at.Seq, s.Last, max(0, s.Size-at.Off))
		}
		return nil
	}
}

// HashGap adds a gap to a hash of gaps, which is 0 without any.
func HashGap(hash, first, last uint64) uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, [3]uint64{hash, first, last}) // a hash never fails
	return h.Sum64()
}
