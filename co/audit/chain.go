package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// A Hash is that of a row and of all before it.
type Hash [sha256.Size]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// A Sealed row has a place in the chain. Positions begin at 1 and have no gaps.
type Sealed struct {
	Row
	Position int64 // in the chain
	Hash     Hash
}

// Chain returns the hash of a row that follows one with the hash before: SHA-256 over that hash and the row as JSON.
func Chain(before Hash, r Row) (Hash, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return Hash{}, fmt.Errorf("encode row %s of the audit: %w", r.ID, err)
	}
	return sha256.Sum256(append(before[:len(before):len(before)], b...)), nil
}

// A Checkpoint is the end of the chain at a time, signed. It is kept outside of the database.
type Checkpoint struct {
	Position  int64     `json:"position"`  // of the last row that it covers, from 1
	Hash      string    `json:"hash"`      // in hex
	At        time.Time `json:"at"`        // by the CO's clock, in UTC, to the second
	Signature []byte    `json:"signature"` // Ed25519, by the key of the checkpoints
}

// signed is what the signature of a checkpoint covers.
func (c Checkpoint) signed() []byte {
	b := []byte("colony audit checkpoint\x00")
	b = binary.BigEndian.AppendUint64(b, uint64(c.Position))
	b = binary.BigEndian.AppendUint64(b, uint64(c.At.Unix()))
	return append(b, c.Hash...)
}

// NewCheckpoint signs the end of a chain.
func NewCheckpoint(key ed25519.PrivateKey, now time.Time, position int64, hash Hash) Checkpoint {
	c := Checkpoint{Position: position, Hash: hash.String(), At: now.UTC().Truncate(time.Second)}
	c.Signature = ed25519.Sign(key, c.signed())
	return c
}

// Signed reports whether the holder of key made c.
func (c Checkpoint) Signed(key ed25519.PublicKey) bool {
	return ed25519.Verify(key, c.signed(), c.Signature)
}

// A Finding is a place where the record is not what was written.
type Finding struct {
	Position int64  `json:"position" doc:"in the chain"`
	ID       string `json:"id,omitempty" doc:"of the row; absent where there is none"`
	Problem  string `json:"problem"` // what is wrong, for people
}

// A Verifier follows the chain. Use NewVerifier, give it the rows in their order, and ask for what it found. It is
// not safe for concurrent use.
type Verifier struct {
	checkpoints []Checkpoint // by position
	position    int64        // of the row before
	hash        Hash         // of the row before
	found       []Finding
	dropped     int
}

// mostFound bounds what is listed.
const mostFound = 100

// NewVerifier returns one that begins after the row at a position, which has that hash; 0 begins with the first. It
// compares the chain with those of the checkpoints that lie after it; they need not be ordered.
func NewVerifier(position int64, hash Hash, checkpoints []Checkpoint) *Verifier {
	sorted := slices.SortedFunc(slices.Values(checkpoints), func(a, b Checkpoint) int { return int(a.Position - b.Position) })
	sorted = slices.DeleteFunc(sorted, func(c Checkpoint) bool { return c.Position <= position })
	return &Verifier{checkpoints: sorted, position: position, hash: hash}
}

func (v *Verifier) find(position int64, id, format string, args ...any) {
	if len(v.found) >= mostFound {
		v.dropped++
		return
	}
	v.found = append(v.found, Finding{position, id, fmt.Sprintf(format, args...)})
}

// Row takes the next row.
func (v *Verifier) Row(r Sealed) error {
	switch {
	case r.Position <= v.position:
		v.find(r.Position, r.ID, "the position is there twice")
		return nil
	case r.Position > v.position+1:
		v.find(v.position+1, "", "%d rows are missing before this one", r.Position-v.position-1)
		v.pass(r.Position - 1)
	default:
		want, err := Chain(v.hash, r.Row)
		if err != nil {
			return err
		}
		if want != r.Hash {
			v.find(r.Position, r.ID, "the row is not what was written, or not where it was written")
		}
	}
	v.position, v.hash = r.Position, r.Hash
	for len(v.checkpoints) > 0 && v.checkpoints[0].Position == r.Position {
		if c := v.checkpoints[0]; c.Hash != r.Hash.String() {
			v.find(r.Position, r.ID, "the chain was another one at the checkpoint of %s: rows up to here were written anew", c.At.Format(time.RFC3339))
		}
		v.checkpoints = v.checkpoints[1:]
	}
	return nil
}

// pass leaves out the checkpoints of rows that are missing up to a position.
func (v *Verifier) pass(position int64) {
	for len(v.checkpoints) > 0 && v.checkpoints[0].Position <= position {
		v.checkpoints = v.checkpoints[1:]
	}
}

// End says that there are no more rows: what checkpoints know beyond the last one is missing.
func (v *Verifier) End() {
	if n := len(v.checkpoints); n > 0 {
		last := v.checkpoints[n-1]
		v.find(v.position+1, "", "the end is missing: at %s there were rows up to position %d", last.At.Format(time.RFC3339), last.Position)
		v.checkpoints = nil
	}
}

// Found returns what is wrong in the rows so far, and how many findings more there were than it lists.
func (v *Verifier) Found() (found []Finding, more int) { return v.found, v.dropped }

// Position is that of the last row, and Hash its hash.
func (v *Verifier) Position() (int64, Hash) { return v.position, v.hash }

// ParseCheckpoints reads a file of checkpoints, one JSON object a line, and returns those that the holder of key
// signed. It counts the whole lines that are no checkpoint, or that another key signed; a torn last line is left out.
func ParseCheckpoints(b []byte, key ed25519.PublicKey) (list []Checkpoint, bad int) {
	for line := range bytes.Lines(b[:bytes.LastIndexByte(b, '\n')+1]) {
		var c Checkpoint
		if err := json.Unmarshal(line, &c); err != nil || !c.Signed(key) {
			bad++
			continue
		}
		list = append(list, c)
	}
	return list, bad
}
