package node

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/https"
	"github.com/colonyfleet/colony/identity/revocation"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/identity/tpm"
	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/doctor/host"
)

// A Proof says how a tier proves its identity.
type Proof struct {
	// Key is the key of the configuration that asks for it, Set whether it is there.
	Key string
	Set bool
	// External says that an external broker authenticates the clients, Open that an LO accepts
	// every name that a node gives.
	External, Open bool
	// Dir is where the keys and certificates are, and Keys the key identity.key of the configuration.
	Dir  string
	Keys string
	Name identity.Name
	// TokenFile is where the join token is looked for, and Token the command that makes one;
	// empty at the CO, which certifies itself.
	TokenFile, Token string
	// Applies says that the machine asks without a token where it has none, and waits to be approved.
	Applies bool
}

// Secrets are the private keys and the join token of a tier that are there.
func (p Proof) Secrets() []string {
	files, err := filepath.Glob(filepath.Join(p.Dir, "*.key"))
	if err != nil {
		return nil // the directory's own name is a pattern that is none
	}
	if _, err := os.Stat(p.TokenFile); err == nil {
		files = append(files, p.TokenFile)
	}
	return files
}

// HTTP checks that a URL of the tier above answers. A URL of https:// is asked with the certificate of this tier, if it
// has to have one.
func (p Proof) HTTP(what, key, target string, server identity.Name) func(context.Context) []doctor.Finding {
	if !p.Set || !strings.HasPrefix(target, "https://") {
		return host.HTTP(what, key, target)
	}
	return func(ctx context.Context) []doctor.Finding {
		files, module := p.files()
		defer module.Close() //nolint:errcheck // nothing is left in it
		c, err := files.Load(store.Machine)
		if err != nil {
			return []doctor.Finding{doctor.Warnf("see what identity says", "%s is not asked: this tier has no certificate to show", what)}
		}
		holder := identity.NewHolder(identity.NewClock(time.Now, files.Floor(), nil))
		holder.Set(c)
		client := https.NewClient(https.ClientOptions{Base: target, Key: key, Holder: holder, Server: server, Logger: slog.New(slog.DiscardHandler)})
		return host.HTTPBy(client, what, key, target)(ctx)
	}
}

// Enrolment returns addresses of enrolment as URLs.
func Enrolment(addresses []string) (urls []string) {
	for _, a := range addresses {
		urls = append(urls, "tcp://"+a)
	}
	return urls
}

// overdue is how long before its end a certificate must have been renewed: an LO and a node
// begin at a third of the life, the CO a little later.
const overdue = identity.LeafLife / 5

// Identity checks the certificate of a tier and what it needs to get one.
func Identity(p Proof) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding { return p.check(time.Now()) }
}

func (p Proof) check(now time.Time) []doctor.Finding {
	if p.External {
		return []doctor.Finding{doctor.Okf("the external broker authenticates the clients")}
	}
	if !p.Set {
		return []doctor.Finding{doctor.Warnf("set "+p.Key+" in the configuration: docs/identity.md says how, in which order",
			"development mode: no client proves its identity here, and every name that a client of the broker gives is accepted")}
	}
	files, module := p.files()
	defer module.Close() //nolint:errcheck // nothing is left in it
	var out []doctor.Finding
	if module != nil {
		out = append(out, p.judgeTPM(files, module))
	}
	if p.Name.Tier == identity.CO {
		out = append(out, judgeRoot(files, now))
	}
	out = append(out, p.certificate(files, now))
	out = append(out, p.authority(files)...)
	out = append(out, p.standing(files)...)
	if p.Open {
		out = append(out, doctor.Warnf("set identity in the configuration of the LO, and lo.enrol in those of its nodes: docs/identity.md", "development mode: no node has a certificate"))
	}
	if late := files.Floor().Time.Sub(now); late > time.Hour {
		out = append(out, doctor.Warnf("set the clock; where it is right, that of the tier above was ahead: docs/identity.md says how to lower the floor",
			"the clock says %s, and a certificate of the tier above began %s later: the tier goes by that until the clock is beyond it", now.UTC().Format(time.RFC3339), late.Round(time.Minute)))
	}
	return out
}

// files returns where the keys and certificates are, and the TPM that has the keys; nil: they are files.
func (p Proof) files() (*store.Store, *tpm.Module) {
	module, err := tpm.Parse(p.Keys)
	if err != nil {
		module = nil // the check of the configuration says it
	}
	return store.At(nil, p.Dir).In(module), module
}

// judgeTPM judges whether the key of the machine is in the TPM, or can be.
func (p Proof) judgeTPM(files *store.Store, module *tpm.Module) doctor.Finding {
	in, err := files.InTPM(store.Machine)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := module.Make(); err != nil { // which leaves nothing in it
			return doctor.Failf("as it says, or leave identity.key out: keys are files then", "identity.key is %s: %v", p.Keys, err)
		}
		return doctor.Okf("the TPM %s makes keys; the machine has none yet", module.Path())
	case err == nil && !in:
		return doctor.Warnf("to have it in the TPM stop the tier, remove "+p.Dir+", and enrol the machine with a join token that was made with --replace: "+p.Token,
			"identity.key is %s, and the key of the machine is a file of before: the tier goes on with that", p.Keys)
	case err == nil:
		_, err = files.Key(store.Machine)
	}
	if err != nil {
		return doctor.Failf("as it says; where the TPM was cleared, start the tier: it makes another key, and wants a join token that was made with --replace", "%v", err)
	}
	return doctor.Okf("the key of the machine is in the TPM %s", module.Path())
}

func judgeRoot(files *store.Store, now time.Time) doctor.Finding {
	root, err := files.OpenRoot()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return doctor.Failf("bring the root with colony ca import or colony co restore; only for a new fleet make one with colony ca init: it locks out all machines that have a certificate",
			"the root of the fleet is missing: the CO does not start")
	case err != nil:
		return doctor.Failf("bring the root with colony ca import", "the root of the fleet: %v", err)
	}
	return judgeEnd("the root of the fleet", root.Root(), now, identity.AuthorityLife, "make a new root, and enrol all machines again: what it certifies ends with it")
}

// certificate judges the tier's own certificate, or what it has in the place of one.
func (p Proof) certificate(files *store.Store, now time.Time) doctor.Finding {
	c, err := files.Load(store.Machine)
	switch {
	case errors.Is(err, fs.ErrNotExist) && p.TokenFile == "":
		return doctor.Okf("the CO has no certificate yet: it makes one when it starts")
	case errors.Is(err, fs.ErrNotExist):
		return p.joining()
	case err != nil:
		return doctor.Failf("as it says; a new join token comes from "+p.Token, "%v", err)
	}
	n, err := c.Check(identity.NewClock(func() time.Time { return now }, files.Floor(), nil))
	if err != nil {
		return doctor.Failf("remove "+filepath.Join(p.Dir, "machine.crt")+", and enrol the machine with a new join token", "the certificate is of no use: %v", err)
	}
	if n.Name != p.Name {
		return doctor.Failf("correct the name in the configuration; or remove "+p.Dir+", and enrol the machine by its new name", "the certificate is that of %s: the configuration says %s", n.Name, p.Name)
	}
	return judgeEnd("the certificate of "+p.Name.String(), c.Chain[0], now, overdue,
		"the tier renews it by itself: its log says why it could not (no certificate yet). Where that is not_enrolled, give it a new join token")
}

// authority judges what an LO needs to certify its nodes.
func (p Proof) authority(files *store.Store) []doctor.Finding {
	if _, err := files.Load(store.Machine); err != nil || p.Name.Tier != identity.LO {
		return nil // see certificate
	}
	token := "make a join token with " + p.Token + ", and write it to " + p.TokenFile
	_, err := files.Load(store.Issuer)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return []doctor.Finding{doctor.Warnf("connect the LO to the CO, which certifies the authority anew; where it refuses that (not_enrolled), "+token,
			"the authority of site %s is missing: no node enrols or renews, the certificates that nodes have count on", p.Name.Site)}
	}
	return []doctor.Finding{doctor.Failf("start the LO anew, which sets the file aside and asks for another authority; where the CO refuses that (not_enrolled), "+token,
		"the authority of site %s is of no use, so that no node enrols or renews: %v", p.Name.Site, err)}
}

// standing judges whether the tier above lets the machine in, and what the tier knows of revoked keys.
func (p Proof) standing(files *store.Store) (out []doctor.Finding) {
	if p.Name.Tier == identity.CO {
		return nil
	}
	renew := "remove " + p.Dir + ", so that the machine makes another key, and enrol it with a new join token: " + p.Token
	switch r, err := files.Refusal(); {
	case errors.Is(err, fs.ErrNotExist), err == nil && r.Code == identity.Pending: // see waiting
	case err != nil:
		out = append(out, doctor.Warnf("look at the log of the tier (no certificate yet)", "why %s was refused cannot be read: %v", p.Name, err))
	case r.Code == identity.Revoked:
		out = append(out, doctor.Failf(renew, "%s was refused when it asked for a certificate last: %v", p.Name, r))
	default:
		out = append(out, doctor.Warnf("as it says; a new join token comes from "+p.Token, "%s was refused when it asked for a certificate last: %v", p.Name, r))
	}
	list, err := revocation.Stored(p.Dir, p.Name.Site)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return out // no key was revoked, as far as this tier has heard
	case err != nil:
		return append(out, doctor.Warnf("start the tier: it sets the file aside, and gets the list once more from the tier above", "the list of revoked keys: %v", err))
	}
	out = append(out, doctor.Okf("list %d of revoked keys is in force: %d keys, as the CO had them at %s", list.Number, len(list.Keys), time.UnixMilli(int64(list.Number)).UTC().Format(time.RFC3339)))
	keys := revocation.Names(list)
	for _, name := range []string{store.Machine, store.Issuer} {
		if c, err := files.Load(name); err == nil && slices.Contains(keys, identity.KeyName(c.Chain[0])) {
			out = append(out, doctor.Failf(renew, "the key %s of %s is on the list: no machine of the fleet lets it in", name, p.Name))
		}
	}
	return out
}

// joining judges a machine that has no certificate.
func (p Proof) joining() doctor.Finding {
	raw, err := os.ReadFile(p.TokenFile)
	if err == nil {
		_, err = identity.ParseToken(string(raw))
	}
	if errors.Is(err, fs.ErrNotExist) && p.Applies {
		return p.waiting()
	}
	if err != nil {
		return doctor.Failf("make a join token with "+p.Token+", and write it to "+p.TokenFile, "%s has no certificate, and no join token: %v", p.Name, err)
	}
	return doctor.Warnf("start the tier; if it runs, its log says why it was refused (no certificate yet), and a new token comes from "+p.Token, "%s has no certificate yet, and a join token in %s", p.Name, p.TokenFile)
}

// waiting judges a machine that has neither a certificate nor a join token, and asks without.
func (p Proof) waiting() doctor.Finding {
	key, err := store.At(nil, p.Dir).KeyName(store.Machine)
	if err != nil {
		return doctor.Warnf("start the tier: it makes its key, and asks for its certificate", "%s has no certificate, no join token, and no key yet: %v", p.Name, err)
	}
	return doctor.Warnf(fmt.Sprintf("approve its key where it is this one: colony node approve %s/%s %.16s; or make a join token with %s, and write it to %s", p.Name.Site, p.Name.Node, key, p.Token, p.TokenFile),
		"%s has no certificate and no join token: it waits until its key %s is approved", p.Name, key)
}

// judgeEnd judges when a certificate ends, which should not be within a time.
func judgeEnd(what string, c *x509.Certificate, now time.Time, within time.Duration, fix string) doctor.Finding {
	end := c.NotAfter.UTC().Format(time.RFC3339)
	switch left := c.NotAfter.Sub(now); {
	case left <= 0:
		return doctor.Failf(fix, "%s has ended at %s", what, end)
	case left < within:
		return doctor.Warnf(fix, "%s ends at %s", what, end)
	}
	return doctor.Okf("%s lasts until %s", what, end)
}
