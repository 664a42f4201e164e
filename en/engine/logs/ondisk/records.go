package ondisk

import (
	"encoding/binary"
	"encoding/json"

	"github.com/colonyfleet/colony/en/engine"
)

func nameRecord(id engine.ID) []byte {
	b, err := json.Marshal(id)
	if err != nil {
		panic(err) // strings are always encoded
	}
	return append([]byte{recordName}, b...)
}

func (m mark) record() []byte {
	kind := byte(recordMark)
	if m.begins {
		kind = recordBegin
	}
	b := binary.AppendVarint([]byte{kind}, m.at)
	b = binary.AppendUvarint(b, uint64(m.run))
	for _, end := range m.ends {
		b = binary.AppendUvarint(b, uint64(end))
	}
	return b
}

func (e extent) record(i int) []byte {
	flags := uint64(0)
	if e.mid {
		flags |= 1
	}
	if e.less {
		flags |= 2
	}
	b := []byte{recordDrop, byte(i)}
	for _, v := range []uint64{uint64(e.base), uint64(e.old), uint64(e.start), uint64(e.lines), flags} {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// emptyRecord returns that of an extent whose file, of n bytes, is about to be emptied.
func (e extent) emptyRecord(i int, n int64) []byte {
	b := e.record(i)
	b[0] = recordEmpty
	return binary.AppendUvarint(b, uint64(n))
}

func collapseRecord(i int, n int64) []byte {
	return binary.AppendUvarint([]byte{recordCollapse, byte(i)}, uint64(n))
}
