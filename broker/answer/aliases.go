package answer

import (
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/colonyfleet/colony/broker/packet"
)

// AliasMaximum is how many topic aliases a client may set, which CONNACK says.
const AliasMaximum = 32

// Aliases are the topic aliases that a client set on one connection. The zero value has none. Not
// safe for concurrent use.
type Aliases struct {
	topics map[uint16]string
	held   int64
}

// aliasBytes is about the memory that an alias takes beside its topic.
const aliasBytes = 64

// Held is about the memory that the aliases take, in bytes.
func (a *Aliases) Held() int64 { return a.held }

// Topic is the topic of a PUBLISH, which may stand behind an alias. [MQTT-3.3.2-8]
func (a *Aliases) Topic(p *packet.Publication) (string, error) {
	if !p.HasAlias {
		return string(p.Topic), nil
	}
	if p.Alias == 0 || p.Alias > AliasMaximum { // [MQTT-3.3.2-9]
		return "", packets.ErrTopicAliasInvalid
	}
	if len(p.Topic) == 0 {
		known, ok := a.topics[p.Alias]
		if !ok {
			return "", packets.ErrProtocolViolationNoTopic
		}
		return known, nil
	}
	if a.topics == nil {
		a.topics = make(map[uint16]string)
	}
	topic := string(p.Topic)
	if before, set := a.topics[p.Alias]; set {
		a.held -= int64(aliasBytes + len(before))
	}
	a.topics[p.Alias] = topic
	a.held += int64(aliasBytes + len(topic))
	return topic, nil
}
