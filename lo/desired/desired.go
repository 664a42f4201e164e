// Package desired is where the LO gets to know what its site should run, and
// where it keeps that over restarts. A new desired state counts only once it,
// and every spec that it names, was verified by digest and is on disk; until
// then the one before stays in force. So a site with a broken link, or a restart
// in the middle of a change, goes on with a whole state, never with half of one.
//
// With the root key of the fleet's key sets a state counts only where the CO has signed it as a
// whole and in each part. The statements about the parts are kept, for the nodes.
//
// Where desired states come from is a Source; the one there is today hands in
// what arrives by MQTT.
package desired

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
)

const (
	dirPerm  = 0o700
	filePerm = 0o600 // of downloads

	// Role is the Role of a damaged desired state.
	Role = "lo/desired"
	// SpecRole is the Role of a damaged spec, whose Name is its digest.
	SpecRole = "lo/spec"
)

// A Spec is a verified version of a deployment.
type Spec struct {
	Bytes []byte
	// Signature is the CO's statement about the last entry that named the version, with its
	// payload in it; nil: the CO did not sign.
	Signature []byte
	// Decoded is what Bytes hold.
	Decoded protocol.DeploymentSpec
}

// Options are what a Store works with. All but Root are needed.
type Options struct {
	Disk disk.FS
	// Dir is a directory of Disk that belongs to the Store.
	Dir  string
	Site protocol.SiteID
	// Fetch gets what does not come whole.
	Fetch Fetch
	// Root is the root key of the fleet's key sets: each desired state must be signed. Nil:
	// nothing is checked.
	Root   ed25519.PublicKey
	Logger *slog.Logger
}

// A Store holds the site's desired state on disk. Its methods may be called concurrently.
type Store struct {
	disk  disk.FS
	dir   string
	site  protocol.SiteID
	fetch Fetch
	log   *slog.Logger
	root  ed25519.PublicKey

	damaged []*statefile.Damage // by Open

	offering sync.Mutex // one Offer at a time

	mu      sync.RWMutex // guards what follows
	current protocol.SiteDesired
	held    bool
	trust   sign.Trust
	checked protocol.Held // the state that was checked last, as it is on disk
	specs   map[protocol.Digest]Spec
	body    []byte // the encoded state that was fetched last, of this run, and adopted; nil: none was
}

// Open reads what an earlier run stored. Damaged files are reported in the
// log and count as missing: the CO's retained message brings them again.
func Open(o Options) (*Store, error) {
	s := &Store{disk: o.Disk, dir: o.Dir, site: o.Site, fetch: o.Fetch, log: o.Logger, root: o.Root, specs: map[protocol.Digest]Spec{}}
	if err := s.disk.MkdirAll(s.specDir(), dirPerm); err != nil {
		return nil, fmt.Errorf("create desired store: %w", err)
	}
	for _, one := range []string{s.dir, s.specDir()} {
		if err := atomicfile.Clean(s.disk, one); err != nil {
			return nil, fmt.Errorf("clean desired store: %w", err)
		}
	}
	if err := s.loadTrust(); err != nil {
		return nil, err
	}
	if err := s.loadSpecs(); err != nil {
		return nil, err
	}
	var m protocol.SiteDesired
	found, err := s.load(s.file(), func(b []byte) (err error) {
		m, err = s.decode(b)
		return err
	})
	if err != nil || !found {
		return s, err
	}
	if err := s.complete(m); err != nil {
		s.log.Error("stored desired state is not whole; waiting for the CO to send it again", "path", s.file().Path, "err", err)
		return s, nil
	}
	s.current, s.held = m, true
	if s.root != nil && !s.believed() {
		s.log.Warn("the desired state in force was adopted without a check of its signatures: it goes on, and the next one is checked", "position", m.Position.String())
	}
	return s, nil
}

// Checked reports whether the signatures of the state in force were checked.
func (s *Store) Checked() bool { return s.root != nil && s.believed() }

// Damage returns the files that Open found damaged. They count as not held.
func (s *Store) Damage() []*statefile.Damage { return s.damaged }

// load reads a file; a damaged one is noted and not found.
func (s *Store) load(f statefile.File, decode func([]byte) error) (found bool, err error) {
	found, err = f.Load(decode)
	if d, ok := errors.AsType[*statefile.Damage](err); ok {
		s.log.Error("stored desired state is damaged; waiting for the CO to send it again", "err", d)
		s.damaged = append(s.damaged, d)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read desired store: %w", err)
	}
	return found, nil
}

func (s *Store) file() statefile.File {
	return statefile.File{Disk: s.disk, Identity: statefile.Identity{Role: Role, Name: string(s.site)}, Path: filepath.Join(s.dir, "desired.cbor")}
}

func (s *Store) specDir() string { return filepath.Join(s.dir, "specs") }

func (s *Store) specFile(d protocol.Digest) statefile.File {
	return statefile.File{
		Disk: s.disk, Identity: statefile.Identity{Role: SpecRole, Name: string(d)}, Path: filepath.Join(s.specDir(), strings.TrimPrefix(string(d), "sha256:")),
	}
}

func (s *Store) signatureFile(d protocol.Digest) statefile.File {
	f := s.specFile(d)
	return statefile.File{Disk: s.disk, Identity: statefile.Identity{Role: "lo/signature", Name: string(d)}, Path: f.Path + signatureSuffix, Sealed: true}
}

// verify returns the spec that b holds if b has the digest.
func verify(digest protocol.Digest, b []byte) (Spec, error) {
	if err := digest.Verify(b); err != nil {
		return Spec{}, protocol.Errorf(protocol.Invalid, "spec: %w", err)
	}
	spec := Spec{Bytes: b}
	if err := protocol.Unmarshal(b, &spec.Decoded); err != nil {
		return Spec{}, fmt.Errorf("spec %s: %w", digest.Short(), err)
	}
	return spec, nil
}

// Current returns the desired state in force, with the specs left out; ok is
// false where the LO has never had one.
func (s *Store) Current() (m protocol.SiteDesired, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.current, s.held
}

// Spec returns a stored version.
func (s *Store) Spec(d protocol.Digest) (Spec, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	spec, ok := s.specs[d]
	return spec, ok
}

// Offer adopts an encoded SiteDesired at a greater position than that of the one in force. It
// returns true once the state is in force, and false where it is in force already. It fails with
// kind Invalid or Conflict where the state is refused, and with a sign.Refusal if its signatures
// are the reason. Any other kind means that it can be offered again: a spec could not be fetched or
// stored. At the position in force it adopts new signatures, and the list of what the nodes ran.
func (s *Store) Offer(ctx context.Context, payload []byte) (adopted bool, err error) {
	s.offering.Lock()
	defer s.offering.Unlock()
	m, err := s.decode(payload)
	if err != nil {
		return false, err
	}
	if m.Position.IsZero() {
		return false, protocol.Errorf(protocol.Invalid, "desired state without a position: upgrade the CO to the release of this LO")
	}
	current, held := s.Current()
	same := false
	if held {
		switch c := m.Position.Compare(current.Position); {
		case c < 0:
			return false, protocol.Errorf(protocol.Conflict,
				"desired state %s is older than %s, which is in force: the CO was restored, or another one publishes for this site", m.Position, current.Position)
		case c == 0 && m.Digest != "" && m.Digest == current.Digest && s.believed():
			return false, nil
		default:
			same = c == 0
		}
	}
	named := m
	var body []byte
	if m.Digest != "" {
		if m, payload, err = s.whole(ctx, m); err != nil {
			return false, err
		}
		body = payload
	}
	m, trust, err := s.check(m, payload)
	if err != nil {
		return false, err
	}
	m.Digest, m.Size = named.Digest, named.Size
	if same && m.Held() != current.Held() {
		return false, protocol.Errorf(protocol.Conflict,
			"desired state %s arrived twice with different content: the CO was restored, or another one publishes for this site", m.Position)
	}
	adopted, err = s.adopt(ctx, m, trust)
	if err == nil && body != nil {
		s.mu.Lock()
		s.body = body
		s.mu.Unlock()
	}
	return adopted, err
}

// adopt puts a whole state into force, and what it was checked with.
func (s *Store) adopt(ctx context.Context, m protocol.SiteDesired, trust sign.Trust) (adopted bool, err error) {
	stripped := strip(m)
	running := m.Running
	stripped.Running = nil // it is taken up once, and not after a restart
	specs, err := s.gather(ctx, m)
	if err != nil {
		return false, err
	}
	current, held := s.Current()
	current.Running = nil
	news := !held || len(specs) > 0 || !s.believed()
	if encoded := protocol.Marshal(stripped); news || !bytes.Equal(encoded, protocol.Marshal(current)) {
		if err := s.save(m.Held(), encoded, specs, trust); err != nil {
			return false, err
		}
	}
	current.Digest, current.Size = m.Digest, m.Size // how it travels is no news
	news = news || running != nil || !bytes.Equal(protocol.Marshal(stripped), protocol.Marshal(current))
	stripped.Running = running
	s.mu.Lock()
	s.current, s.held = stripped, true
	s.mu.Unlock()
	if !news {
		return false, nil
	}
	if err := disk.RemoveAll(s.disk, PartialDir(s.dir)); err != nil {
		s.log.WarnContext(ctx, "finished downloads not removed", "err", err)
	}
	return true, nil
}

// save writes a state and its specs, the specs first: a desired state on disk always finds all
// of its specs. What it was checked with comes last: until then it is checked once more.
func (s *Store) save(held protocol.Held, state []byte, specs map[protocol.Digest]Spec, trust sign.Trust) error {
	for _, digest := range slices.Sorted(maps.Keys(specs)) {
		if err := s.storeSpec(digest, specs[digest]); err != nil {
			return err
		}
	}
	if err := s.file().Save(state); err != nil {
		return fmt.Errorf("store desired state: %w", err)
	}
	return s.saveTrust(trust, held)
}

// PartialDir is where HTTP keeps the downloads for a Store in dir, which removes
// them once a desired state is in force.
func PartialDir(dir string) string { return filepath.Join(dir, "partial") }

// strip returns m without its inline specs, which are stored by digest, and without the head, which
// is not used any more. The statements about the entries stay, unless m were too large with them: the
// statements that are stored with the specs may be of a later state that could not be stored.
func strip(m protocol.SiteDesired) protocol.SiteDesired {
	m.Deployments = slices.Clone(m.Deployments)
	for i := range m.Deployments {
		m.Deployments[i].Spec = nil
	}
	m.Head = nil
	if len(protocol.Marshal(m)) > protocol.MaxMessage { // it could not be read back
		for i := range m.Deployments {
			m.Deployments[i].Signature = nil
		}
	}
	return m
}

// decode reads a SiteDesired and inspects it.
func (s *Store) decode(payload []byte) (protocol.SiteDesired, error) {
	var m protocol.SiteDesired
	if err := protocol.Unmarshal(payload, &m); err != nil {
		return m, fmt.Errorf("desired state: %w", err)
	}
	return s.inspect(m)
}

// inspect checks all of m that does not need its specs, and sorts its entries.
func (s *Store) inspect(m protocol.SiteDesired) (protocol.SiteDesired, error) {
	if m.Site != s.site {
		return m, protocol.Errorf(protocol.Invalid, "desired state is for site %q, this is site %q", m.Site, s.site)
	}
	slices.SortFunc(m.Deployments, func(a, b protocol.SiteEntry) int { return cmp.Compare(a.Deployment, b.Deployment) })
	if err := checkRemovals(m); err != nil {
		return m, err
	}
	for i, e := range m.Deployments {
		if _, err := protocol.ParseDeploymentName(string(e.Deployment)); err != nil {
			return m, fmt.Errorf("desired state: %w", err)
		}
		if i > 0 && m.Deployments[i-1].Deployment == e.Deployment {
			return m, protocol.Errorf(protocol.Invalid, "desired state lists deployment %s twice", e.Deployment)
		}
		if _, err := protocol.ParseDigest(string(e.Digest)); err != nil {
			return m, fmt.Errorf("desired state of deployment %s: %w", e.Deployment, err)
		}
	}
	for _, d := range []protocol.Digest{m.Digest, m.Content} {
		if d == "" {
			continue
		}
		if _, err := protocol.ParseDigest(string(d)); err != nil {
			return m, fmt.Errorf("desired state: %w", err)
		}
	}
	return m, nil
}

// checkRemovals returns what is wrong with what m asks to remove, and with what it says
// that nodes ran.
func checkRemovals(m protocol.SiteDesired) error {
	for _, r := range m.Removals {
		if _, err := protocol.ParseDeploymentName(string(r.Deployment)); err != nil {
			return fmt.Errorf("desired state: removal: %w", err)
		}
		if slices.ContainsFunc(m.Deployments, func(e protocol.SiteEntry) bool { return e.Deployment == r.Deployment }) {
			return protocol.Errorf(protocol.Invalid, "desired state lists deployment %s both to run and to remove", r.Deployment)
		}
	}
	for _, r := range m.Running {
		if _, err := protocol.ParseNodeID(string(r.Node)); err != nil {
			return fmt.Errorf("desired state: what nodes ran: %w", err)
		}
	}
	return nil
}

// complete returns an error where a spec that m names is not stored.
func (s *Store) complete(m protocol.SiteDesired) error {
	for _, e := range m.Deployments {
		if _, ok := s.Spec(e.Digest); !ok {
			return fmt.Errorf("the spec %s of deployment %s is missing", e.Digest, e.Deployment)
		}
	}
	return nil
}

// gather returns the specs of m that are not stored yet, from m itself or fetched.
func (s *Store) gather(ctx context.Context, m protocol.SiteDesired) (map[protocol.Digest]Spec, error) {
	specs := map[protocol.Digest]Spec{}
	for _, e := range m.Deployments {
		held, ok := s.Spec(e.Digest)
		if ok && string(held.Signature) == string(e.Signature) {
			continue
		}
		b := e.Spec
		if b == nil && ok {
			b = held.Bytes // only its signature is new
		}
		if b == nil {
			var err error
			if b, err = s.fetch(ctx, Want{e.Digest, e.Size, s.previous(e.Deployment)}); err != nil {
				return nil, fmt.Errorf("fetch spec of deployment %s: %w", e.Deployment, err)
			}
		}
		spec, err := verify(e.Digest, b)
		if err != nil {
			return nil, fmt.Errorf("deployment %s: %w", e.Deployment, err)
		}
		if spec.Decoded.Deployment != e.Deployment {
			return nil, protocol.Errorf(protocol.Invalid, "the spec of deployment %s is made for %q", e.Deployment, spec.Decoded.Deployment)
		}
		spec.Signature = e.Signature
		specs[e.Digest] = spec
	}
	return specs, nil
}

func (s *Store) storeSpec(digest protocol.Digest, spec Spec) error {
	if len(spec.Signature) > 0 {
		if err := s.signatureFile(digest).Save(spec.Signature); err != nil {
			return fmt.Errorf("store signature: %w", err)
		}
	}
	if err := s.specFile(digest).Save(spec.Bytes); err != nil {
		return fmt.Errorf("store spec: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.specs[digest] = spec
	return nil
}

// Keep removes the specs that neither the state in force nor keep names. While an
// Offer is at work it does nothing: that may fetch for hours, and its specs are
// not in force yet.
func (s *Store) Keep(keep []protocol.Digest) error {
	if !s.offering.TryLock() {
		return nil
	}
	defer s.offering.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	used := map[protocol.Digest]bool{}
	for _, d := range keep {
		used[d] = true
	}
	for _, e := range s.current.Deployments {
		used[e.Digest] = true
	}
	var errs []error
	for _, d := range slices.Sorted(maps.Keys(s.specs)) {
		if used[d] {
			continue
		}
		delete(s.specs, d)
		errs = append(errs, s.specFile(d).Remove(), s.signatureFile(d).Remove())
	}
	return errors.Join(errs...)
}
