package projection

import (
	"fmt"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

// damageMessage says what a damaged file of a site, or of a node of it, leads to, and what to do.
func damageMessage(site protocol.SiteID, node protocol.NodeID, m *protocol.Loss) string {
	whose := "site"
	if node != "" {
		whose = "node"
	}
	if role, missing := strings.CutSuffix(m.Class, " missing"); missing && without[role] != "" {
		return fmt.Sprintf("the %s's %s is missing, although it was begun; %s; check the disk of the %s", whose, role, without[role], whose)
	}
	head := fmt.Sprintf("the %s's file of %s was damaged", whose, clean(m.Class))
	check := "check the disk of the " + whose
	if name, ok := strings.CutPrefix(m.Class, "lo/journal mark "); ok {
		return fmt.Sprintf("where the site's journal %s ended is not known, as its file trim was damaged or is missing: what was at its end may be lost, how much is not known; what the CO has of it may come once more; %s", clean(name), check)
	}
	if strings.HasPrefix(m.Class, "broker/sessions ") { // the undelivered messages of clients exist nowhere else
		return head + ": " + sessionsLoss(m) + "; " + check
	}
	return head + " and set aside; " + recovery(site, node, m.Class) + "; " + check
}

// without is what follows where a store of a site is missing, by its role.
var without = map[string]string{
	"broker/sessions store": "the clients that have sessions at its broker have lost what waited for them",
	"lo/data/retained":      "the retained messages of its broker are gone until their publishers send them again",
	"lo/positions":          "messages that the CO has sent to the site may come to its clients once more",
	"lo/datarules":          "it is learnt anew",
	"lo/machines":           "which keys its nodes enrolled with is not known any more: a node is known by its certificate once it connects or renews",
}

// sessionsLoss says what is known of what the clients that have sessions at a broker have lost.
func sessionsLoss(m *protocol.Loss) string {
	switch {
	case m.Records == 0:
		return "nothing of the sessions of its broker is lost"
	case m.Uncounted, strings.HasPrefix(m.Class, "broker/sessions checkpoint "): // also of an LO of 0.2.0, which does not know either
		return "what else could be read is there, how much is lost to the clients that have sessions at the broker is not known"
	}
	return fmt.Sprintf("what could be read of it is there, %d records or more are lost to the clients that have sessions at the broker", m.Records)
}

// recovery is how the content of a damaged file comes back.
func recovery(site protocol.SiteID, node protocol.NodeID, class string) string {
	token := "colony site add " + string(site)
	if node != "" {
		token = "colony node token " + string(site)
	}
	switch class {
	case "identity/files machine.key":
		return fmt.Sprintf("the machine makes another key: give it a join token of %s --replace", token)
	case "identity/files machine.crt":
		return fmt.Sprintf("the machine asks for another certificate with the same key; where it is refused (machine_refused), give it a join token of %s", token)
	case "identity/files issuer.key":
		return fmt.Sprintf("the LO makes another key for the authority of its site, which the CO certifies with a join token alone: make one with %s, and write it to the file of identity.tokenFile; "+
			"until then no node enrols or renews, and the certificates that nodes have count on", token)
	}
	return "it is learnt anew"
}
