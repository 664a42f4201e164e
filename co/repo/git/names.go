package git

import (
	"fmt"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

func (a Author) check() error {
	for _, s := range []string{a.Name, a.Email} {
		if s == "" || strings.ContainsAny(s, "<>\n\r\x00") {
			return protocol.Errorf(protocol.Invalid, "git author %s: name and e-mail must be given, without < and >", a)
		}
	}
	return nil
}

// String returns the author as git writes it.
func (a Author) String() string { return fmt.Sprintf("%s <%s>", a.Name, a.Email) }
