// Package revocation keeps the list of keys of machines that were revoked, as an LO or a node has it
// from the CO: on disk, checked, and never an earlier one than before. It does not act on
// connections: their owners learn of each change.
package revocation

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/notify"
	"github.com/colonyfleet/colony/internal/retry"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

// Role is the Role of a damaged list.
const Role = "identity/revocations"

// Options are what a List needs. All are required, but for Root and Refused.
type Options struct {
	Site protocol.SiteID
	// Root is the root key of the CO's key sets. Nil: signatures are not checked, and every client
	// that reaches the topic of the list can revoke.
	Root ed25519.PublicKey
	Disk disk.FS
	Dir  string
	// Changed is called with the keys in force, by identity.KeyName, in Open and after each change,
	// by one goroutine at a time.
	Changed func(keys []string)
	// Damaged is called where the file was damaged: then the list in force is empty until it comes
	// again, as it does with each connection.
	Damaged func(*statefile.Damage)
	// Refused is called with why a list was refused, unless the same one was refused just before. Nil:
	// nothing is called.
	Refused func(err error)
	Logger  *slog.Logger
}

// A List is the list in force. Its methods may be called concurrently.
type List struct {
	o       Options
	file    statefile.File
	changed notify.Signal // there may be another payload

	set   sync.Mutex      // held by Set, with the calls of Changed and Refused; protects wrong
	wrong protocol.Digest // of the message that was refused last

	mu      sync.Mutex // protects what follows
	trust   sign.Trust
	payload []byte // encoded SiteRevocations; nil: there is none
	current protocol.Revocations
	refused map[sign.Reason]uint64
}

// fileOf is the file of a site's list in a directory.
func fileOf(d disk.FS, dir string, site protocol.SiteID) statefile.File {
	return statefile.File{Disk: d, Path: filepath.Join(dir, "revocations.cbor"), Identity: statefile.Identity{Role: Role, Name: string(site)}}
}

// Stored returns the list that a List has stored in a directory, and changes nothing; the error is
// fs.ErrNotExist where there is none.
func Stored(dir string, site protocol.SiteID) (protocol.Revocations, error) {
	f := fileOf(disk.OS, dir, site)
	raw, err := disk.ReadFile(f.Disk, f.Path)
	if err != nil {
		return protocol.Revocations{}, err
	}
	content, _, err := f.Unseal(raw)
	if err != nil {
		return protocol.Revocations{}, fmt.Errorf("%s: %w", f.Path, err)
	}
	_, list, err := read(site, content)
	if err != nil {
		return protocol.Revocations{}, fmt.Errorf("%s: %w", f.Path, err)
	}
	return list, nil
}

// Open reads the list that was in force.
func Open(o Options) (*List, error) {
	l := &List{o: o, changed: notify.New(), refused: map[sign.Reason]uint64{}, file: fileOf(o.Disk, o.Dir, o.Site)}
	if o.Root != nil {
		var err error
		if l.trust, err = sign.NewTrust(o.Root); err != nil {
			return nil, err
		}
	}
	_, err := l.file.Load(func(content []byte) error {
		// It was checked when it was adopted. What was revoked stays so where keys were replaced.
		m, list, err := read(o.Site, content)
		if err != nil {
			return err
		}
		l.payload, l.current = bytes.Clone(content), list
		if trust, err := l.trust.Follow(m.KeySet); o.Root != nil && err == nil {
			l.trust = trust
		}
		return nil
	})
	if damage, ok := errors.AsType[*statefile.Damage](err); ok {
		o.Damaged(damage)
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of revoked keys: %w", err)
	}
	o.Changed(l.Keys())
	return l, nil
}

// read decodes an encoded SiteRevocations and its list without checking a signature.
func read(site protocol.SiteID, payload []byte) (m protocol.SiteRevocations, list protocol.Revocations, err error) {
	if err = protocol.Unmarshal(payload, &m); err != nil {
		return m, list, sign.Refuse(sign.Malformed, "the message about revoked keys cannot be read: %v", err)
	}
	if len(m.Statement) == 0 {
		list, err = sign.ReadRevocations(site, m.List)
	} else {
		list, err = sign.UncheckedRevocations(site, m.Statement)
	}
	return m, list, err
}

// Set takes an encoded SiteRevocations, and reports whether it is another one than before. An error
// is a sign.Refusal.
func (l *List) Set(payload []byte) (changed bool, err error) {
	if len(payload) == 0 {
		return false, nil // the topic was cleared, which says nothing
	}
	l.set.Lock()
	defer l.set.Unlock()
	if changed, err = l.adopt(payload); err != nil {
		l.mu.Lock()
		l.refused[sign.ReasonOf(err)]++
		l.mu.Unlock()
		l.o.Logger.Error("list of revoked keys refused; the one before stays in force", "err", err)
		if digest := protocol.DigestOf(payload); l.o.Refused != nil && digest != l.wrong {
			l.wrong = digest
			l.o.Refused(err)
		}
	}
	if changed {
		l.o.Changed(l.Keys())
		l.changed.Notify()
	}
	return changed, err
}

// adopt stores a list and puts it into force. l.set is held.
func (l *List) adopt(payload []byte) (changed bool, err error) {
	l.mu.Lock()
	trust, before, same := l.trust, l.current, bytes.Equal(l.payload, payload)
	l.mu.Unlock()
	if same {
		return false, nil
	}
	m, list, err := read(l.o.Site, payload)
	if err == nil && l.o.Root != nil {
		if trust, err = trust.Follow(m.KeySet); err == nil {
			list, err = trust.Revocations(l.o.Site, m.Statement)
		}
	}
	switch {
	case err != nil:
		return false, err
	case list.Number < before.Number:
		return false, sign.Refuse(sign.Stale, "the list of revoked keys has number %d: this machine goes by %d already", list.Number, before.Number)
	case list.Number == before.Number && !bytes.Equal(protocol.Marshal(&list), protocol.Marshal(&before)):
		return false, sign.Refuse(sign.Mismatch, "there are two lists of revoked keys with number %d", list.Number)
	}
	if err := l.file.Save(payload); err != nil {
		l.o.Logger.Warn("list of revoked keys not stored: it counts until this process ends, and comes again", "err", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if trust.Number() > l.trust.Number() {
		l.trust = trust
	}
	l.payload, l.current = bytes.Clone(payload), list
	l.o.Logger.Info("list of revoked keys adopted", "number", list.Number, "keys", len(list.Keys))
	return true, nil
}

// Follow takes a key set that came with something else, such as a desired state: a signing key that was
// retired revokes nothing more, although no list came since. One that is not later changes nothing.
func (l *List) Follow(keySet []byte) {
	if l.o.Root == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if next, err := l.trust.Follow(keySet); err == nil {
		l.trust = next
	}
}

// Payload is the encoded SiteRevocations in force; nil: there is none.
func (l *List) Payload() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.payload
}

// publishRetry are the waits after a list that could not be published.
var publishRetry = retry.Policy{Min: time.Second, Max: 30 * time.Second}

// HandOn publishes the encoded SiteRevocations in force, and each one that takes its place, until ctx ends; what
// could not be published is tried again. One goroutine at a time runs it.
func (l *List) HandOn(ctx context.Context, publish func(ctx context.Context, payload []byte) error) {
	tries := retry.Backoff{Policy: publishRetry}
	var last []byte
	for ctx.Err() == nil {
		payload := l.Payload()
		if bytes.Equal(payload, last) {
			_ = l.changed.Wait(ctx) // the loop ends with ctx
			continue
		}
		if err := publish(ctx, payload); err != nil {
			wait := tries.Next()
			if ctx.Err() == nil {
				l.o.Logger.WarnContext(ctx, "list of revoked keys not handed on, it is tried again", "retry_in", wait.String(), "err", err)
			}
			_ = retry.Sleep(ctx, wait)
			continue
		}
		tries.Reset()
		last = payload
	}
}

// Number is that of the list in force; 0: there is none.
func (l *List) Number() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current.Number
}

// Keys are those in force, by identity.KeyName.
func (l *List) Keys() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Names(l.current)
}

// Names are the keys of a list, by identity.KeyName.
func Names(m protocol.Revocations) []string {
	out := make([]string, len(m.Keys))
	for i, k := range m.Keys {
		out[i] = hex.EncodeToString(k.Key)
	}
	return out
}

// Refused counts the lists that were refused since the start, by reason.
func (l *List) Refused() map[sign.Reason]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.refused)
}
