package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/recordlog"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
)

// state is what an LO knows of its nodes, as JSON.
type state struct {
	Tokens []protocol.NodeToken `json:"tokens"`
	// Used is how often tokens were used, by id.
	Used map[string]int `json:"used"`
	// Nodes are those that are enrolled.
	Nodes map[protocol.NodeID]node `json:"nodes"`
	// Replaced are the keys of nodes whose place another one took here, with the end of their last
	// certificates in milliseconds since 1970: they are revoked at this LO until then.
	Replaced map[string]int64 `json:"replaced,omitempty"`
	// Revoked are the names whose keys were revoked, with the time, in milliseconds since 1970 by the CO's
	// clock: a token of before does not open them.
	Revoked map[protocol.NodeID]int64 `json:"revoked,omitempty"`
	// Decided is what the CO decided about nodes without a token, by the key in hex.
	Decided map[string]decision `json:"decided,omitempty"`
}

// A node is one that is enrolled.
type node struct {
	Key      string    `json:"key"`   // SHA-256 of its public key, in hex
	Token    string    `json:"token"` // id of the join token that was used, or approved; empty: known by its certificate
	Enrolled time.Time `json:"enrolled"`
	Remote   string    `json:"remote,omitempty"` // the address that it asked from; empty: known by its certificate
	// Certified says that it has a certificate of this LO that was reported to the CO.
	Certified bool `json:"certified,omitempty"`
}

// clone returns a state whose maps may be changed.
func (s state) clone() state {
	next := state{Tokens: s.Tokens, Used: maps.Clone(s.Used), Nodes: maps.Clone(s.Nodes), Replaced: maps.Clone(s.Replaced), Revoked: maps.Clone(s.Revoked), Decided: s.Decided}
	if next.Used == nil {
		next.Used = map[string]int{}
	}
	if next.Nodes == nil {
		next.Nodes = map[protocol.NodeID]node{}
	}
	if next.Replaced == nil {
		next.Replaced = map[string]int64{}
	}
	if next.Revoked == nil {
		next.Revoked = map[protocol.NodeID]int64{}
	}
	return next
}

// A change is one record of the file, as JSON: all that is known, or what one node changes.
type change struct {
	// Whole takes the place of all that was before. Nil: the other fields count.
	Whole *state          `json:"whole,omitempty"`
	ID    protocol.NodeID `json:"id,omitempty"`
	Node  node            `json:"node,omitzero"`
	// Used is the id of a token that was used, and Uses how often it was in all; empty: none was.
	Used string `json:"used,omitempty"`
	Uses int    `json:"uses,omitempty"`
	// Replaced is the key that the node had before, and End the end of its last certificate; empty: it had
	// none. Revoked is the entry of the node in state.Revoked; 0: it has none.
	Replaced string `json:"replaced,omitempty"`
	End      int64  `json:"end,omitempty"`
	Revoked  int64  `json:"revoked,omitempty"`
}

// apply makes the change to a state whose maps may be changed.
func (c change) apply(s *state) {
	if c.Whole != nil {
		*s = c.Whole.clone()
		return
	}
	s.Nodes[c.ID] = c.Node
	if c.Used != "" {
		s.Used[c.Used] = c.Uses
	}
	if c.Replaced != "" {
		s.Replaced[c.Replaced] = c.End
	}
	if c.Revoked > 0 {
		s.Revoked[c.ID] = c.Revoked
	}
}

// A book keeps a state in a file to which changes are appended. Its methods are called one at a time, but for
// flush: nodes that enrol at once share one flush of the disk.
type book struct {
	s        state // its maps are the book's own
	log      *recordlog.Log
	most     int64 // size of the file, in bytes, from which on it is replaced by one without history
	unsaved  bool  // the file is older than s
	torn     int64 // bytes of an unfinished change that were cut off when the file was read
	unsealed bool  // the end of the file is not known to be whole

	appended atomic.Uint64 // number of changes in the file
	failed   atomic.Bool   // a flush failed: what is on the disk is unknown

	flushing sync.Mutex // held while the log is flushed, replaced or closed; protects flushed
	flushed  uint64     // appended, as it was before the last flush
}

// NodesPath is the file of what is known of the nodes that are enrolled, below the LO's state directory, and Role that of its damage.
// The role is the package's name when the files were first written: another would make them count as damaged.
const (
	NodesPath = "identity/" + nodesFile
	Role      = "lo/machines"
)

const (
	nodesFile = "nodes.log"
	maxRecord = 64 << 20
	// slack is what changes may take in the file beyond twice the whole state, in bytes.
	slack = 256 << 10
)

// openBook reads what an earlier run knew, also from the file of builds that replaced it whole. After damage, which
// it reports, nothing is known: of a history with gaps a node would count by a key that was replaced.
func openBook(d disk.FS, dir string, damaged func(*statefile.Damage)) (*book, error) {
	id := statefile.Identity{Role: Role}
	b := &book{s: state{}.clone()}
	log, found, err := recordlog.Open(recordlog.Options{Identity: id, Disk: d, Path: filepath.Join(dir, nodesFile), MaxRecord: maxRecord}, func(body []byte, _ uint64) error {
		var c change
		if err := json.Unmarshal(body, &c); err != nil {
			return err
		}
		c.apply(&b.s)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the nodes that are enrolled: %w", err)
	}
	b.log, b.torn, b.unsealed = log, found.Torn, found.Unsealed
	if found.Damage != nil {
		damaged(found.Damage)
		b.s, b.unsaved = state{}.clone(), true
	}
	if found.New {
		if err := b.migrate(statefile.File{Disk: d, Path: filepath.Join(dir, "nodes"), Identity: id}, damaged); err != nil {
			return nil, errors.Join(err, log.Close())
		}
	}
	raw, err := json.Marshal(b.s)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	b.bound(raw)
	return b, nil
}

// migrate reads the file that was replaced whole, and removes it once its content is in the log.
func (b *book) migrate(old statefile.File, damaged func(*statefile.Damage)) error {
	var s state
	found, err := old.Load(func(content []byte) error { return json.Unmarshal(content, &s) })
	if damage, ok := errors.AsType[*statefile.Damage](err); ok {
		damaged(damage)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the nodes that are enrolled: %w", err)
	}
	if !found {
		return nil
	}
	if err := b.replace(s); err != nil {
		b.s, b.unsaved = s.clone(), true // the next change stores it
		return nil
	}
	return old.Remove()
}

// bound sets the size from which on the file is replaced, by the encoded state.
func (b *book) bound(raw []byte) { b.most = 2*int64(len(raw)) + slack }

// replace stores what the next state is, and then makes it the present one.
func (b *book) replace(next state) error {
	raw, err := json.Marshal(change{Whole: &next})
	if err != nil {
		return err
	}
	b.flushing.Lock()
	defer b.flushing.Unlock()
	if err := b.log.Replace([][]byte{raw}); err != nil {
		return fmt.Errorf("store the nodes that are enrolled: %w", err)
	}
	b.flushed = b.appended.Load()
	b.failed.Store(false)
	b.s, b.unsaved = next.clone(), false
	b.bound(raw)
	return nil
}

// save appends a change of one node to the file, and then makes it. It is durable after a flush.
func (b *book) save(c change) error {
	if b.unsaved || b.log.Broken() || b.log.Size() > b.most {
		next := b.s.clone()
		c.apply(&next)
		return b.replace(next)
	}
	raw, err := json.Marshal(c)
	if err == nil {
		err = b.log.Append(raw)
	}
	if err != nil {
		return fmt.Errorf("store the node that is enrolled: %w", err)
	}
	b.appended.Add(1)
	c.apply(&b.s)
	return nil
}

// repair writes the whole state where a flush failed.
func (b *book) repair() error {
	if !b.failed.Load() {
		return nil
	}
	return b.replace(b.s.clone())
}

// flush makes durable what was appended before the call. Where it fails, repair does.
func (b *book) flush() error {
	appended := b.appended.Load()
	b.flushing.Lock()
	defer b.flushing.Unlock()
	if b.flushed >= appended {
		return nil
	}
	next := b.appended.Load()
	if err := b.log.Sync(); err != nil {
		b.failed.Store(true)
		return fmt.Errorf("store the nodes that are enrolled: %w", err)
	}
	b.flushed = next
	return nil
}

// close flushes and closes the file.
func (b *book) close() error {
	b.flushing.Lock()
	defer b.flushing.Unlock()
	return b.log.Close()
}
