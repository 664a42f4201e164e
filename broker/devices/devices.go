// Package devices is the access control of a site's broker with the accounts of the site's
// devices: clients that are no part of Colony, such as a PLC or a SCADA system. An account
// says which client ids its clients may have, what they may publish and what they may
// receive. Everybody else is subject to access.Site.
package devices

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/filter"
	"github.com/colonyfleet/colony/broker/turns"
	"github.com/colonyfleet/colony/internal/netaddr"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/device"
)

// bcrypt takes a tenth of a second of a core: this many are verified at a time, and so many more
// may wait. Where more come, some are to try again: a storm of reconnects must not stop a gateway. What is verified in vain takes a
// tenth of a core, see turns.Turns.
const (
	verifyAtOnce  = 2
	waitForVerify = 32
	// mostStrangers is how many clients without a chosen password may wait for their refusal. They do no work, and are
	// connections in their handshake, of which the broker bounds those of an address and all.
	mostStrangers = 1024
)

// Access is the access control of a site's broker. Its methods may be called concurrently.
type Access struct {
	access.Site
	now atomic.Pointer[table]

	verify    *turns.Turns
	strangers *turns.Strangers // users whose password there is no bcrypt hash to compare with
	// compare is bcrypt.CompareHashAndPassword.
	compare func(hash, password []byte) error
}

// A table is the accounts of a site. It does not change.
type table struct {
	accounts map[string]*account // by user name
	named    map[string]bool     // client ids that an account lists without a pattern
	faulty   map[string]bool     // users whose account is not in force
	hashes   []string            // of all chosen passwords, in an order that follows from the accounts
}

// taken reports whether an account other than d names a client id.
func (t *table) taken(d *account, clientID string) bool {
	if device.Names(&d.DeviceAccount, clientID) {
		return false
	}
	if t.named[clientID] {
		return true
	}
	user, _, _ := strings.Cut(clientID, "/")
	other := t.accounts[user]
	return other != nil && device.Names(&other.DeviceAccount, clientID)
}

// may reports whether an account may have a client id.
func (t *table) may(d *account, site protocol.SiteID, clientID string) bool {
	return device.MayUse(&d.DeviceAccount, site, clientID) && !t.taken(d, clientID)
}

// An account is one device.
type account struct {
	protocol.DeviceAccount

	mu      sync.Mutex        // protects proved
	proved  [sha256.Size]byte // of the password that bcrypt has accepted last
	isProof bool              // proved is set
}

// New returns the access control of a site without accounts.
func New(site protocol.SiteID) *Access {
	a := &Access{
		Site: access.Site(site), verify: turns.New(verifyAtOnce, waitForVerify, time.Now), compare: bcrypt.CompareHashAndPassword,
		strangers: turns.NewStrangers(mostStrangers, waitForVerify, time.Now),
	}
	a.now.Store(&table{})
	return a
}

// A Change is what new accounts mean for the clients that are there.
type Change struct {
	// Outdated are the users whose clients are to be disconnected, as their account was removed or asks for
	// something else of a client that connects.
	Outdated []string
	// Ids says that accounts have other client ids than before: MayHold may have changed for any session.
	Ids bool
}

// Set puts accounts into force. It returns what that changes, and what is wrong with accounts that are left out.
func (a *Access) Set(list []protocol.DeviceAccount) (change Change, faults []device.Fault) {
	faults = device.Validate(list)
	bad := make(map[int]bool)
	for _, f := range faults {
		bad[f.Index] = true
	}
	old, next := a.now.Load().accounts, make(map[string]*account, len(list))
	t := &table{accounts: next, named: make(map[string]bool), faulty: make(map[string]bool)}
	for i, d := range list {
		if i >= device.MaxDevices || bad[i] {
			t.faulty[d.User] = true
			continue
		}
		for _, id := range d.ClientIDs {
			t.named[id] = true
		}
		next[d.User] = &account{DeviceAccount: d}
		if d.Bcrypt != "" {
			t.hashes = append(t.hashes, d.Bcrypt)
		}
		if was := old[d.User]; was != nil && was.Bcrypt == d.Bcrypt {
			was.mu.Lock()
			next[d.User].proved, next[d.User].isProof = was.proved, was.isProof
			was.mu.Unlock()
		}
	}
	a.now.Store(t)
	change.Ids = len(old) != len(next)
	for user, was := range old {
		is := next[user]
		ids := is == nil || !slices.Equal(is.ClientIDs, was.ClientIDs)
		change.Ids = change.Ids || ids
		if ids || is.Bcrypt != was.Bcrypt || string(is.SHA256) != string(was.SHA256) {
			change.Outdated = append(change.Outdated, user)
		}
	}
	return change, faults
}

func (a *Access) account(user string) *account { return a.now.Load().accounts[user] }

// MayHold reports whether the session of a client id may stay that of a user: not where that had a device account which
// was removed, or which may not use the client id any more. Other users keep theirs, as do those whose account is faulty.
func (a *Access) MayHold(user, clientID string) bool {
	t := a.now.Load()
	if d := t.accounts[user]; d != nil {
		return t.may(d, a.site(), clientID)
	}
	return strings.ContainsAny(user, "@.") || t.faulty[user]
}

func (a *Access) site() protocol.SiteID { return protocol.SiteID(a.Site) }

// Connect implements broker.Access.
func (a *Access) Connect(info access.ConnectInfo) (access.Identity, error) {
	d := a.account(info.Username)
	if d == nil {
		id, err := a.Site.Connect(info)
		if err != nil && info.Username != "" && !strings.ContainsAny(info.Username, "@.") {
			err = a.deny(info, protocol.Errorf(protocol.Denied,
				"user %q: site %s has no device account of this name: colony site device add %s %s makes one", info.Username, a.site(), a.site(), info.Username))
		}
		return id, err
	}
	if err := a.check(d, info); err != nil { // first: a client with a wrong password must not learn that the account exists
		return access.Identity{}, err
	}
	if !device.MayUse(&d.DeviceAccount, a.site(), info.ClientID) {
		return access.Identity{}, protocol.Errorf(protocol.Invalid, "client id %q of the device account %s: want %s: set it in the device, or allow it with colony site device add --client-id",
			info.ClientID, d.User, clientIDs(&d.DeviceAccount))
	}
	if a.now.Load().taken(d, info.ClientID) {
		return access.Identity{}, protocol.Errorf(protocol.Invalid, "client id %q of the device account %s: another account has it, and a pattern does not cover that: use another one", info.ClientID, d.User)
	}
	return access.Identity{Name: d.User, Site: a.site(), Client: d.User, Device: true}, nil
}

func clientIDs(d *protocol.DeviceAccount) string {
	if len(d.ClientIDs) == 0 {
		return fmt.Sprintf("%s, or one that begins with %s/", d.User, d.User)
	}
	return strings.Join(d.ClientIDs, " or ")
}

// check returns why a password is not that of an account, or nil. Where many are to be verified, those of a user at an address
// that has sent wrong ones come last, and those of one that has sent the right one before come first.
func (a *Access) check(d *account, info access.ConnectInfo) error {
	sum := sha256.Sum256(info.Password)
	wrong := protocol.Errorf(protocol.Denied, "wrong password of the device account %s: colony site device add makes a new one", d.User)
	if d.Bcrypt == "" {
		if subtle.ConstantTimeCompare(sum[:], d.SHA256) != 1 {
			return a.deny(info, wrong)
		}
		return nil
	}
	source := sourceOf(info)
	if d.has(sum) {
		a.verify.Succeeded(source)
		return nil
	}
	begun, failedBefore := time.Now(), a.verify.Failed(source)
	end := a.verify.Take(source)
	if end == nil {
		return errBusy
	}
	turn := time.Now()
	proved := d.has(sum) // another connection of the device came first
	if !proved {
		proved = a.compare([]byte(d.Bcrypt), info.Password) == nil
		a.strangers.Saw(failedBefore, turn.Sub(begun), time.Since(turn), costOf(d.Bcrypt))
	}
	end(!proved)
	if !proved {
		return &access.BadCredentials{Err: wrong}
	}
	d.mu.Lock()
	d.proved, d.isProof = sum, true
	d.mu.Unlock()
	return nil
}

// errBusy refuses a client without a look at its password.
var errBusy = protocol.Errorf(protocol.Unavailable, "too many passwords are being verified: try again")

// sourceOf is for whom a password is verified.
func sourceOf(info access.ConnectInfo) turns.Source {
	return turns.Source{Address: netaddr.Network(info.Remote), User: info.Username}
}

// deny returns why a client may not connect whose user has no account, or no account with a chosen password. It waits as long as the check of a wrong
// chosen password would take, so that the time does not reveal which accounts exist. It takes no turn and does no work: otherwise clients with invented
// users would keep devices out. The delay is that of one of the chosen passwords, always the same one for a user, as their hashes may differ in cost.
func (a *Access) deny(info access.ConnectInfo, why error) error {
	if hashes := a.now.Load().hashes; len(hashes) > 0 {
		sum := sha256.Sum256([]byte(info.Username))
		hash := hashes[binary.BigEndian.Uint64(sum[:])%uint64(len(hashes))]
		if !a.strangers.Wait(sourceOf(info), costOf(hash), func() { _ = a.compare([]byte(hash), info.Password) }) { // refused either way
			return errBusy
		}
	}
	return &access.BadCredentials{Err: why}
}

// costOf is what a hash costs to compare with a password: each more of it doubles that.
func costOf(hash string) int {
	cost, _ := bcrypt.Cost([]byte(hash)) // accounts with a faulty one are not in force
	return cost
}

// has reports whether a password, by its SHA-256, was proved before.
func (d *account) has(sum [sha256.Size]byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isProof && subtle.ConstantTimeCompare(sum[:], d.proved[:]) == 1
}

// MayPublish implements broker.Access.
func (a *Access) MayPublish(id access.Identity, name string) bool {
	if !id.Device {
		return a.Site.MayPublish(id, name)
	}
	d := a.account(id.Name)
	return d != nil && a.Site.MayPublish(access.Identity{}, name) && covers(d.Publish, name)
}

// MaySubscribe implements broker.Access. A device may subscribe to every filter with wildcards: each
// message is checked against the topics that it may receive.
func (a *Access) MaySubscribe(id access.Identity, want string) bool {
	if !id.Device {
		return a.Site.MaySubscribe(id, want)
	}
	d := a.account(id.Name)
	if d == nil {
		return false
	}
	if strings.ContainsAny(want, "+#") {
		return true
	}
	return a.Site.MaySubscribe(access.Identity{}, want) && covers(d.Subscribe, want)
}

// covers reports whether a filter matches a topic. a/# matches a too. [MQTT-4.7.1-2]
func covers(filters []string, name string) bool {
	for _, f := range filters {
		parent, deep := strings.CutSuffix(f, "/#")
		if filter.Covers(f, name) || deep && filter.Covers(parent, name) {
			return true
		}
	}
	return false
}

// Refusal says why a filter was refused.
func (a *Access) Refusal(id access.Identity, want string) string {
	d := a.account(id.Name)
	if !id.Device {
		return a.Site.Refusal(id, want)
	}
	if d == nil {
		return fmt.Sprintf("filter %s: the device account %s was removed", want, id.Name)
	}
	return fmt.Sprintf("filter %s: the device account %s may receive %s: colony site device add --subscribe changes that", want, id.Name, strings.Join(d.Subscribe, " or "))
}

// PublishRefusal says why a topic was refused.
func (a *Access) PublishRefusal(id access.Identity, name string) string {
	switch d := a.account(id.Name); {
	case !id.Device:
		return fmt.Sprintf("topic %.200s: %s may publish to colony/v1/%s/data/#, and to local topics, whose first level is neither colony nor begins with $", name, id.Name, a.site())
	case d == nil:
		return fmt.Sprintf("topic %.200s: the device account %s was removed", name, id.Name)
	default:
		return fmt.Sprintf("topic %.200s: the device account %s may publish to %s: colony site device add --publish changes that", name, id.Name, strings.Join(d.Publish, " or "))
	}
}
