package servicecheck

import (
	"fmt"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// maxArgument is how many bytes one string of a command line or an environment has at most,
	// the zero byte at its end left out: MAX_ARG_STRLEN of Linux (execve(2)), 32 pages of 4 KiB.
	maxArgument = 32*4096 - 1
	// maxLabel is how many bytes a name between two dots has in the DNS (RFC 1035, section 2.3.4).
	maxLabel = 63
	// maxVolume is how many bytes the name of a volume has with that of its component before it: a
	// directory of the node takes 255, and the node puts a word before some.
	maxVolume = 240
)

// name judges the name of a service, which is that of its containers on the network, and without
// a hostname what the container calls itself.
func name(s types.ServiceConfig, say Say) {
	longest := s.Name
	if n := s.GetScale(); n > 1 {
		longest += fmt.Sprintf("-%d", n)
	}
	for l := range strings.SplitSeq(longest, ".") {
		if len(l) > maxLabel {
			say("networks", "the service is %q in the DNS of the deployment, where a name has %d bytes at most between two dots: rename it", longest, maxLabel)
			return
		}
	}
	own := s.NetworkMode != "host" && !strings.HasPrefix(s.NetworkMode, types.NetworkModeServicePrefix)
	if own && s.Hostname == "" && len(longest) > maxHostname {
		say("hostname", "the container calls itself %q, as the service has no hostname; Linux takes %d bytes: give it one, or rename the service", longest, maxHostname)
	}
}

// Sizes says what is too long in a container for Linux to start it, or the node to keep it.
func Sizes(c protocol.Container, say Say) {
	for _, line := range c.Env {
		if len(line) > maxArgument {
			variable, _, _ := strings.Cut(line, "=")
			say("environment", "%s has %d bytes with its name, Linux takes %d: give the program a file, by configs or a bind, and its path", variable, len(line), maxArgument)
		}
	}
	for _, of := range []struct {
		key   string
		words []string
	}{{"entrypoint", c.Entrypoint}, {"command", c.Command}} {
		for i, word := range of.words {
			if len(word) > maxArgument {
				say(of.key, "the word %d has %d bytes, Linux takes %d: give the program a file, by configs or a bind, and its path", i+1, len(word), maxArgument)
			}
		}
	}
	if c.Health != nil {
		for _, word := range c.Health.Command {
			if len(word) > maxArgument {
				say("healthcheck.test", "it has %d bytes, Linux takes %d: put it into a script, by configs or a bind", len(word), maxArgument)
			}
		}
	}
	for _, m := range c.Mounts {
		if m.Kind == protocol.MountVolume && len(m.Source) > maxVolume {
			say("volumes", "%s: the name of the volume has %d bytes on the node, with that of the component, which takes %d: shorten it", m.Target, len(m.Source), maxVolume)
		}
	}
}
