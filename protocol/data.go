package protocol

// A DataRule says how some of a site's machine data is handled: which topics cross the link, in
// which direction, and what is stored while the link is down. The CO sets it. The first rule of a
// site that matches a message applies, so that no message crosses twice and the order of a topic is
// that of one stream.
//
// With Down unset, a message that a client publishes to the site's broker on Local+t, where a
// filter of Topics matches t, is delivered at the CO's broker on colony/v1/{site}/data/ + Remote +
// t. With Down set, one that a client publishes to the CO's broker on colony/v1/{site}/in/ + Remote
// + t is delivered at the site's broker on Local+t. Only messages that clients publish are
// accepted, never messages that Colony delivered, and the two directions have separate topics at
// the CO. So no set of rules can make a loop.
type DataRule struct {
	// Name is a DNS label (RFC 1123), unique at the site. It names the rule's
	// stream: a rule that changes and keeps its name keeps what is queued.
	Name string `cbor:"1,keyasint"`
	// Down is the direction CO to site; absent: site to CO.
	Down bool `cbor:"2,keyasint,omitempty"`

	// Topics are MQTT topic filters (MQTT 5, section 4.7), relative to Local.
	Topics []string `cbor:"3,keyasint"`

	// Local is a prefix of topics at the site's broker, with its final slash.
	// Absent: colony/v1/{site}/data/.
	Local string `cbor:"4,keyasint,omitempty"`
	// Remote is a prefix at the CO's broker, with its final slash. Absent: none.
	Remote string `cbor:"5,keyasint,omitempty"`

	// QoS is the highest QoS with which messages are delivered; absent: 0.
	QoS uint8 `cbor:"6,keyasint,omitempty"`
	// KeepQoS0 stores a message of QoS 0 like one of QoS 1. Absent: it crosses only
	// while the link is up.
	KeepQoS0 bool `cbor:"7,keyasint,omitempty"`
	// Priority orders the rules of a site for the link; absent: normal.
	Priority DataPriority `cbor:"8,keyasint,omitempty"`

	// TTLMillis is how long a message is valid, from its arrival, in milliseconds: it
	// is counted down on the way and passed on as message expiry (MQTT 5, section
	// 3.3.2.3.3). The message's own expiry counts where it is shorter. Absent: no end.
	TTLMillis uint64 `cbor:"9,keyasint,omitempty"`
	// MaxBytes bounds what is queued, in bytes on disk: above it the oldest messages are
	// dropped, and counted. Absent: 256 MiB.
	MaxBytes uint64 `cbor:"10,keyasint,omitempty"`
	// MaxAgeMillis bounds the age of what is queued in the same way, in milliseconds.
	// Absent: no bound by age.
	MaxAgeMillis uint64 `cbor:"11,keyasint,omitempty"`

	// BatchBytes is how much is gathered into one batch before compression, in bytes.
	// Absent: 256 KiB.
	BatchBytes uint32 `cbor:"12,keyasint,omitempty"`
	// BatchMillis is how long a message may wait for others, in milliseconds. Absent:
	// no wait.
	BatchMillis uint32 `cbor:"13,keyasint,omitempty"`
	// Uncompressed sends batches as they are, for data that is compressed already.
	// Absent: they are compressed where that makes them smaller.
	Uncompressed bool `cbor:"14,keyasint,omitempty"`

	// Sample thins the messages out before they are queued; absent: all pass.
	Sample Sample `cbor:"15,keyasint,omitzero"`
}

// DataPriority orders the rules of a site for the link. Presence, status and
// command replies go before all of them.
type DataPriority uint8

// The priorities. The zero value is the normal one.
const (
	NormalPriority DataPriority = 0 // between the others
	HighPriority   DataPriority = 1 // before the others on the link
	LowPriority    DataPriority = 2 // after the others on the link
)

// Sample thins out the messages of each topic before they are queued. Retained
// messages and deletions of retained messages are never left out.
type Sample struct {
	// Mode says which messages pass; absent: all.
	Mode SampleMode `cbor:"1,keyasint,omitempty"`
	// PeriodMillis is the period of SampleLast in milliseconds, and for the other modes the longest
	// silence: a value passes after it even if it has not changed. Absent: no such
	// limit.
	PeriodMillis uint64 `cbor:"2,keyasint,omitempty"`
	// Deadband is how far a number must be from the last one that passed, in the number's
	// unit. Absent: any change passes.
	Deadband float64 `cbor:"3,keyasint,omitempty"`
	// Percent makes Deadband hundredths of the last number that passed. Absent: Deadband
	// is absolute.
	Percent bool `cbor:"4,keyasint,omitempty"`
	// Field is a JSON pointer (RFC 6901) to the number in a JSON payload. Absent: the
	// payload itself is the number, as text.
	Field string `cbor:"5,keyasint,omitempty"`
}

// A SampleMode says which messages of a topic pass.
type SampleMode string

// The modes.
const (
	SampleAll      SampleMode = ""         // every message
	SampleLast     SampleMode = "last"     // the last one of each period
	SampleChange   SampleMode = "change"   // one whose payload differs from the last that passed
	SampleDeadband SampleMode = "deadband" // one whose number left the deadband; what is no number passes
)

// A DataMessage is one message of machine data: the body of an event of kind
// DataEvent, whose UnixMillis is when the message arrived at the tier that sends.
// All but V, Topic and ExpiryMillis are what its publisher set.
type DataMessage struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Topic is where it is delivered: relative to colony/v1/{site}/data/ on the way
	// up, and whole on the way down.
	Topic string `cbor:"1,keyasint"`
	// Payload is opaque to Colony; absent: empty.
	Payload []byte `cbor:"2,keyasint,omitempty"`
	// QoS is that with which it is delivered; absent: 0.
	QoS uint8 `cbor:"3,keyasint,omitempty"`
	// Retain has the broker retain it; without a payload it deletes the retained
	// message of the topic. Absent: it is not retained.
	Retain bool `cbor:"4,keyasint,omitempty"`
	// ExpiryMillis is how long the message is valid, from its arrival, in
	// milliseconds. Absent: no end.
	ExpiryMillis uint64 `cbor:"5,keyasint,omitempty"`

	// ContentType is as in MQTT 5, section 3.3.2.3.9; absent: the publisher set none.
	ContentType string `cbor:"6,keyasint,omitempty"`
	// ResponseTopic is as in MQTT 5, section 3.3.2.3.5; absent: the publisher set none.
	ResponseTopic string `cbor:"7,keyasint,omitempty"`
	// CorrelationData is as in MQTT 5, section 3.3.2.3.6; absent: the publisher set none.
	CorrelationData []byte `cbor:"8,keyasint,omitempty"`
	// Properties are the user properties: pairs of name and value, in their order. Absent:
	// there are none.
	Properties []string `cbor:"9,keyasint,omitempty"`
}

func (m *DataMessage) version() uint16 { return m.V }

// DataStream returns the name of a rule's stream, for Batch.Stream and Ack.Stream.
func DataStream(rule string) string { return "data/" + rule }

// A Backlog is what a sender reports of a stream with each batch. The
// receiver has yet to receive what lies between its position and Last. An absent field
// is 0.
type Backlog struct {
	// Last is the sequence of the newest record.
	Last uint64 `cbor:"1,keyasint,omitempty" json:"last"`
	// Bytes is what the stream occupies on the sender's disk, in bytes.
	Bytes uint64 `cbor:"2,keyasint,omitempty" json:"bytes"`
	// OldestMillis is the age of the oldest record that is not acknowledged, in
	// milliseconds.
	OldestMillis uint64 `cbor:"3,keyasint,omitempty" json:"oldestMillis"`
	// Dropped counts the records dropped under a bound since the sender's process opened
	// the stream.
	Dropped uint64 `cbor:"4,keyasint,omitempty" json:"dropped"`
	// Expired counts those that expired since then.
	Expired uint64 `cbor:"5,keyasint,omitempty" json:"expired"`
	// RTTMicros is the time from sending the last batch to its Ack, in microseconds, as
	// the sender measured it. Absent: not measured yet.
	RTTMicros uint64 `cbor:"6,keyasint,omitempty" json:"rttMicros"`
	// BytesPerSecond is what the link carried lately, in bytes, as the sender measured
	// it. Absent: not measured yet.
	BytesPerSecond uint64 `cbor:"7,keyasint,omitempty" json:"bytesPerSecond"`
}
