package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/colonyfleet/colony/cli/command"
	identitycmd "github.com/colonyfleet/colony/cli/identity"
	"github.com/colonyfleet/colony/co"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	cofleet "github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/lo"
)

// adopt runs colony site adopt and reads its answer.
func (f *fleet) adopt(out any, args ...string) {
	f.t.Helper()
	var answer, messages bytes.Buffer
	cmd := identitycmd.SiteAdopt(&command.Env{URL: "http://" + f.co.HTTPAddr(), Timeout: patience, Format: "json", Out: &answer, Err: &messages})
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := errors.Join(cmd.ExecuteContext(f.t.Context()), json.Unmarshal(answer.Bytes(), out)); err != nil {
		f.t.Fatalf("colony site adopt %v: %v\n%s%s", args, err, answer.String(), messages.String())
	}
}

// TestAdoption gives certificates to a site that ran without: the CO does not let it in any more and
// says which it is, as its LO does of the node, until both have come with the tokens of
// colony site adopt.
func TestAdoption(t *testing.T) {
	t.Parallel()
	f, o := prepare(t, pgtest.New(t))
	plain := o
	plain.Identity = co.IdentityOptions{}
	f.startCO(plain)
	l := f.certifiedLO()
	l.CO.MQTT, l.CO.Enrol, l.Identity = []string{"tcp://" + f.co.MQTTAddr()}, nil, lo.IdentityOptions{}
	f.startLO(l)
	e := f.certifiedEN("g1", "")
	e.LO.MQTT, e.LO.Enrol = []string{"tcp://" + f.lo.MQTTAddr()}, nil
	stopEN := f.startEN(e)
	f.eventually("g1 is online without certificates", f.known("g1"))
	stopEN()
	f.stopLO()
	f.stopCO()

	f.startCO(o)
	var list identityapi.Page[cofleet.Unenrolled]
	f.adopt(&list)
	if list.Total != 1 || len(list.Items) != 1 || list.Items[0].Site != "plant1" || list.Items[0].Nodes != 1 || list.Items[0].Token != nil {
		t.Fatalf("not enrolled: %+v; want plant1 with one node", list)
	}
	var tokens struct{ LO, Nodes identityapi.JoinToken }
	f.adopt(&tokens, "plant1")
	if tokens.LO.Uses != 1 || tokens.Nodes.Uses != 1 {
		t.Errorf("tokens %+v: want one for the LO and one for one node", tokens)
	}
	l = f.certifiedLO()
	f.write(l.Identity.TokenFile, tokens.LO.Token)
	f.startLO(l)
	missing := func(want int) func() error {
		return func() error {
			var s lo.Status
			if err := get("http://"+f.lo.HTTPAddr()+"/status", &s); err != nil || len(s.NotEnrolled) != want {
				return fmt.Errorf("not enrolled: %v, %w", s.NotEnrolled, err)
			}
			return nil
		}
	}
	f.eventually("the LO misses g1", missing(1))
	now := f.certifiedEN("g1", tokens.Nodes.Token)
	now.StateDir = e.StateDir
	f.startEN(now)
	f.eventually("g1 is online by its certificate", f.known("g1"))
	f.eventually("the LO misses no node", missing(0))
	if f.adopt(&list); list.Total != 0 {
		t.Errorf("not enrolled: %+v; want none", list)
	}
}
