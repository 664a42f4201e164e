package client

import "time"

// A Message is one MQTT application message, sent or received.
type Message struct {
	Topic   string
	Payload []byte
	// QoS is 0, 1 or 2. The client publishes and subscribes with 0 or 1 only.
	QoS byte
	// Retain asks the broker to keep the message for later subscribers; an empty
	// payload clears what it kept. On a received message it says that the broker
	// had kept it.
	Retain bool
	// Expiry is how long the message holds, rounded up to whole seconds. 0: for ever.
	Expiry        time.Duration
	ContentType   string // of the payload; empty: not given
	ResponseTopic string
	// CorrelationData is what an answer on ResponseTopic repeats.
	CorrelationData []byte
	// Properties are the MQTT 5 user properties, in order; a key may repeat.
	Properties []Property
}

// A Property is one MQTT 5 user property.
type Property struct{ Key, Value string }

// A Subscription is a topic filter and the highest QoS, 0 or 1, that the broker
// shall deliver with.
type Subscription struct {
	Filter string
	QoS    byte
	// Optional says that a broker which refuses it, as one of an earlier release does, is served all the same; see Client.Subscribed.
	Optional bool
}

// ExpirySeconds returns Expiry as MQTT carries it: whole seconds, rounded up, 0 for none.
func (m Message) ExpirySeconds() uint32 {
	if m.Expiry <= 0 {
		return 0
	}
	return uint32(min((m.Expiry+time.Second-1)/time.Second, 1<<32-1))
}
