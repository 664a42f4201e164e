package lo

import (
	"bytes"
	"context"
	"crypto/x509"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/enrol"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/sign"
	"github.com/colonyfleet/colony/protocol/topic"
)

// registrar admits each machine with the token.
type registrar struct{ token identity.Token }

func (r registrar) Admit(_ context.Context, c identity.Claim) error {
	if c.Token != r.token.ID || !identity.SecretMatches(r.token.Hash(), c.Secret) {
		return identity.Refuse(identity.TokenUnknown, "no such token")
	}
	return nil
}

func (registrar) Renewed(context.Context, identity.Peer) error { return nil }

func (registrar) Issued(context.Context, identity.Name, *x509.Certificate) error    { return nil }
func (registrar) Refused(context.Context, identity.Name, string, *identity.Refusal) {}

// provenCO is a CO's broker and its enrolment, both by certificates of one root.
type provenCO struct {
	root    *identity.Authority
	token   identity.Token
	broker  *broker.Broker
	enrol   string
	message chan string // topics that an LO published to
}

func newProvenCO(t *testing.T) *provenCO {
	t.Helper()
	c := &provenCO{message: make(chan string, 100)}
	key := func() *identity.Credential {
		k, err := identity.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		return &identity.Credential{Key: k}
	}
	var err error
	if c.root, err = identity.NewRoot(key().Key, time.Now()); err != nil {
		t.Fatal(err)
	}
	c.token = identity.NewToken(c.root.Root())
	own := key()
	if own.Chain, err = c.root.Issue(identity.OfCO(), own.Key.Public(), time.Now()); err != nil {
		t.Fatal(err)
	}
	own.Root = c.root.Root()
	h := identity.NewHolder(identity.NewClock(time.Now, identity.Floor{}, nil))
	h.Set(own)
	s := httptest.NewUnstartedServer(enrol.NewServer(enrol.ServerOptions{
		Holder: h, Registrar: registrar{c.token}, Tier: identity.LO, Logger: logger(t), Authority: func() (*identity.Authority, error) { return c.root, nil },
	}))
	s.TLS, s.Config.ErrorLog = h.EnrolTLS(), slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	c.enrol = strings.TrimPrefix(s.URL, "https://")
	c.broker, err = broker.New(broker.Options{
		Name: "co", Listeners: []broker.Listener{{Name: "machines", Network: broker.TLS, Address: "127.0.0.1:0", TLS: h.ServerTLS()}},
		Access: access.Certified{Control: access.CO{}, Listener: "machines", Tier: identity.LO, Peer: h.Client}, Logger: logger(t),
		Accept: func(_ context.Context, _ access.Identity, m broker.Message) error {
			c.message <- m.Topic
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.broker.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

// waitOnline waits until the site has announced itself.
func (c *provenCO) waitOnline(t *testing.T) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case m := <-c.message:
			if m == topic.ForSite(topic.SiteOnline, "s1") {
				return
			}
		case <-late:
			t.Fatal("the site did not announce itself within a minute")
		}
	}
}

// TestProvenLO starts an LO without a certificate: it serves its nodes, and is at the CO once it
// has a token. A second start needs none.
func TestProvenLO(t *testing.T) {
	t.Parallel()
	c := newProvenCO(t)
	o := DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP, o.Logger = "s1", t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", logger(t)
	o.CO.MQTT, o.CO.Enrol = []string{"tls://" + c.broker.Addr("machines")}, []string{c.enrol}
	o.Identity.TokenFile = filepath.Join(t.TempDir(), "token")
	l := startLO(t, o)
	startAgent(t, "n1", l.MQTTAddr()) // waits until the node is connected
	if len(c.message) > 0 {
		t.Fatalf("an LO without a certificate published to %s", <-c.message)
	}
	if err := os.WriteFile(o.Identity.TokenFile, []byte(c.token.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	c.waitOnline(t)
	if _, err := l.keeper.Authority(); err != nil {
		t.Errorf("authority of the site: %v", err)
	}
	stopLO(t, l)
	if err := os.Remove(o.Identity.TokenFile); err != nil {
		t.Fatal(err)
	}
	for len(c.message) > 0 {
		<-c.message // of the end
	}
	startLO(t, o)
	c.waitOnline(t)
}

// TestProvenOptions checks that an LO with a certificate does not also speak without TLS.
func TestProvenOptions(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Site, o.StateDir, o.Logger = "s1", t.TempDir(), logger(t)
	o.CO.Enrol, o.CO.MQTT = []string{"co.example:8443"}, []string{"tls://co.example:8884"}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	o.CO.MQTT = append(o.CO.MQTT, "tcp://co.example:1884")
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "tls://") {
		t.Errorf("a URL without TLS: %v", err)
	}
	o.CO.MQTT, o.CO.Enrol = o.CO.MQTT[:1], []string{"co.example"}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("an address that is none: %v", err)
	}
	o.CO.Enrol = []string{"co.example:8443"}
	o.Identity = IdentityOptions{Enrol: "127.0.0.1:0", MQTT: "127.0.0.1:0", Pending: PendingOptions{Most: 64, Serials: []string{"S1"}}}
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		pending PendingOptions
		enrol   string
		says    string
	}{
		{PendingOptions{Most: -1}, "127.0.0.1:0", "want 0 to 1000"},
		{PendingOptions{Most: 1001}, "127.0.0.1:0", "want 0 to 1000"},
		{PendingOptions{Serials: []string{"S1"}}, "127.0.0.1:0", "without identity.pending.most"},
		{PendingOptions{Most: 1}, "", "identity.pending.most without identity.enrol"},
	} {
		o.Identity.Pending, o.Identity.Enrol = c.pending, c.enrol
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v at %q: %v, want %q", c.pending, c.enrol, err, c.says)
		}
	}
}

// TestSignsForNodes has an LO without a certificate desire something of a node: once it is enrolled it signs the same
// anew, with its certificates beside it, and so it does after each renewal.
func TestSignsForNodes(t *testing.T) {
	t.Parallel()
	c := newProvenCO(t)
	o := DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP, o.Logger = "s1", t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", logger(t)
	o.CO.MQTT, o.CO.Enrol = []string{"tls://" + c.broker.Addr("machines")}, []string{c.enrol}
	o.Identity.TokenFile = filepath.Join(t.TempDir(), "token")
	l := startLO(t, o)
	a := startAgent(t, "n1", l.MQTTAddr())
	m := site1(1, "1", protocol.Policy{})
	if _, err := l.desired.Offer(t.Context(), protocol.Marshal(&m)); err != nil {
		t.Fatal(err)
	}
	l.site.Certified() // has the loop look
	unsigned := a.next("what the LO desires", assigned)
	if len(unsigned.Signature) > 0 || len(unsigned.Certificates) > 0 {
		t.Errorf("an LO without a certificate signs: %x", unsigned.Signature)
	}
	if err := os.WriteFile(o.Identity.TokenFile, []byte(c.token.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	signed := a.next("the same, signed", func(d protocol.NodeDesired) bool { return len(d.Signature) > 0 })
	if signed.Held() != unsigned.Held() {
		t.Errorf("signed is %+v, before it was %+v", signed.Held(), unsigned.Held())
	}
	check := func(d protocol.NodeDesired) {
		t.Helper()
		own := l.holder.Credential()
		if len(d.Certificates) != 1 || !bytes.Equal(d.Certificates[0], own.Chain[0].Raw) {
			t.Fatalf("%d certificates, want the LO's own", len(d.Certificates))
		}
		if err := sign.CheckNode(own.Key.Public(), "s1", protocol.Marshal(&d)); err != nil {
			t.Error(err)
		}
	}
	check(signed)
	renewed := *l.holder.Credential()
	chain, err := c.root.Issue(identity.OfLO("s1"), renewed.Key.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	renewed.Chain = chain
	l.holder.Set(&renewed)
	l.site.Certified()
	check(a.next("it with the next certificate", func(d protocol.NodeDesired) bool {
		return len(d.Certificates) == 1 && bytes.Equal(d.Certificates[0], chain[0].Raw)
	}))
}

// TestMissingRecordOfNodes removes what an LO knows of the nodes that are enrolled: it starts, and says so once.
func TestMissingRecordOfNodes(t *testing.T) {
	t.Parallel()
	c := newProvenCO(t)
	o := DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP, o.Logger = "s1", t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", logger(t)
	o.CO.MQTT, o.CO.Enrol = []string{"tls://" + c.broker.Addr("machines")}, []string{c.enrol}
	o.Identity = IdentityOptions{TokenFile: filepath.Join(t.TempDir(), "token"), Enrol: "127.0.0.1:0", MQTT: "127.0.0.1:0"}
	run := func() (missing []string) {
		t.Helper()
		l := startLO(t, o)
		defer stopLO(t, l)
		for _, e := range events(t, l) {
			if e.Kind != protocol.StateDamaged {
				continue
			}
			var loss protocol.Loss
			if err := protocol.Unmarshal(e.Body, &loss); err != nil {
				t.Fatal(err)
			}
			missing = append(missing, loss.Class)
		}
		return missing
	}
	if got := run(); len(got) > 0 {
		t.Errorf("a new LO reports %q", got)
	}
	if err := os.Remove(filepath.Join(o.StateDir, "identity", "nodes.log")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := run(); len(got) != 1 || got[0] != "lo/machines missing" {
			t.Errorf("reported is %q, want the record of nodes, once", got)
		}
	}
}
