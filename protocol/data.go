package protocol

// A DataRule says what becomes of some of a site's machine data: which topics
// cross the link, in which direction, and what is kept while the link is away.
// The first rule of a site that matches a message takes it, so that no message
// crosses twice and the order of a topic is that of one queue.
//
// With Down unset, a message that a client publishes to the site's broker on
// Local+t, where a filter of Topics matches t, is delivered at the CO's broker on
// colony/v1/{site}/data/ + Remote + t. With Down set, one that a client publishes
// to the CO's broker on colony/v1/{site}/in/ + Remote + t is delivered at the
// site's broker on Local+t. Only what clients publish is taken, never what Colony
// delivered itself, and the two directions have topics of their own at the CO:
// so nothing goes round in a loop, whatever the rules say.
type DataRule struct {
	// Name is a DNS label (RFC 1123), unique at the site. It names the rule's
	// queue: a rule that changes and keeps its name keeps what is queued.
	Name string `cbor:"1,keyasint"`
	Down bool   `cbor:"2,keyasint,omitempty"`

	// Topics are MQTT topic filters (MQTT 5, section 4.7), relative to Local.
	Topics []string `cbor:"3,keyasint"`

	// Local is a prefix of topics at the site's broker, with its final slash.
	// Empty: colony/v1/{site}/data/.
	Local string `cbor:"4,keyasint,omitempty"`
	// Remote is a prefix at the CO's broker, with its final slash, or empty.
	Remote string `cbor:"5,keyasint,omitempty"`

	// QoS is the highest QoS with which messages are delivered. A message of QoS 0
	// is kept like one of QoS 1 where KeepQoS0 is set; else it crosses only while
	// the link is up.
	QoS      uint8        `cbor:"6,keyasint,omitempty"`
	KeepQoS0 bool         `cbor:"7,keyasint,omitempty"`
	Priority DataPriority `cbor:"8,keyasint,omitempty"`

	// TTLMillis is how long a message is of use, from its arrival: it is counted
	// down on the way and passed on as message expiry (MQTT 5, section 3.3.2.3.3).
	// The message's own expiry counts where it is shorter. 0 means no end.
	TTLMillis uint64 `cbor:"9,keyasint,omitempty"`
	// MaxBytes and MaxAgeMillis bound the queue: above them the oldest messages are
	// dropped, and counted. 0 means 256 MiB, and no bound by age.
	MaxBytes     uint64 `cbor:"10,keyasint,omitempty"`
	MaxAgeMillis uint64 `cbor:"11,keyasint,omitempty"`

	// BatchBytes and BatchMillis say how much is gathered into one batch before
	// compression, and how long a message may wait for others. 0 means 256 KiB, and
	// no wait.
	BatchBytes  uint32 `cbor:"12,keyasint,omitempty"`
	BatchMillis uint32 `cbor:"13,keyasint,omitempty"`
	// Uncompressed sends batches as they are, for data that is compressed already.
	Uncompressed bool `cbor:"14,keyasint,omitempty"`

	Sample Sample `cbor:"15,keyasint,omitzero"`
}

// DataPriority orders the rules of a site for the link. Presence, status and
// command replies go before all of them.
type DataPriority uint8

// The priorities. The zero value is the normal one.
const (
	NormalPriority DataPriority = 0
	HighPriority   DataPriority = 1
	LowPriority    DataPriority = 2
)

// Sample thins out the messages of each topic before they are queued. Retained
// messages and deletions of retained messages are never left out.
type Sample struct {
	Mode SampleMode `cbor:"1,keyasint,omitempty"`
	// PeriodMillis is the period of SampleLast, and for the other modes the longest
	// silence: a value passes after it even if it has not changed. 0: no such limit.
	PeriodMillis uint64 `cbor:"2,keyasint,omitempty"`
	// Deadband is how far a number must be from the last one that passed; with
	// Percent, in hundredths of that one.
	Deadband float64 `cbor:"3,keyasint,omitempty"`
	Percent  bool    `cbor:"4,keyasint,omitempty"`
	// Field is a JSON pointer (RFC 6901) to the number in a JSON payload. Empty: the
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
type DataMessage struct {
	V uint16 `cbor:"0,keyasint"`
	// Topic is where it is delivered: relative to colony/v1/{site}/data/ on the way
	// up, and whole on the way down.
	Topic   string `cbor:"1,keyasint"`
	Payload []byte `cbor:"2,keyasint,omitempty"`
	QoS     uint8  `cbor:"3,keyasint,omitempty"`
	// Retain without a payload deletes the retained message of the topic.
	Retain bool `cbor:"4,keyasint,omitempty"`
	// ExpiryMillis is how long the message is of use, from its arrival. 0: no end.
	ExpiryMillis uint64 `cbor:"5,keyasint,omitempty"`

	// As in MQTT 5, section 3.3.2.3. Properties are pairs of name and value.
	ContentType     string   `cbor:"6,keyasint,omitempty"`
	ResponseTopic   string   `cbor:"7,keyasint,omitempty"`
	CorrelationData []byte   `cbor:"8,keyasint,omitempty"`
	Properties      []string `cbor:"9,keyasint,omitempty"`
}

func (m *DataMessage) version() uint16 { return m.V }

// DataStream returns the lane of a rule's queue, for Batch.Lane and Ack.Lane.
func DataStream(rule string) string { return "data/" + rule }

// A Backlog is what a tier tells of one of its queues, with each batch. What the
// receiver has not committed of Last is what is still to come.
type Backlog struct {
	// Last is the sequence of the newest record.
	Last  uint64 `cbor:"1,keyasint,omitempty"`
	Bytes uint64 `cbor:"2,keyasint,omitempty"` // on disk
	// OldestMillis is the age of the oldest record that is not acknowledged.
	OldestMillis uint64 `cbor:"3,keyasint,omitempty"`
	// Dropped counts the records dropped under a bound, and Expired those whose time
	// was up, since the queue was opened.
	Dropped uint64 `cbor:"4,keyasint,omitempty"`
	Expired uint64 `cbor:"5,keyasint,omitempty"`
	// RTTMicros is the time from sending the last batch to its Ack, and
	// BytesPerSecond what the link carried lately, as the sender measured them.
	RTTMicros      uint64 `cbor:"6,keyasint,omitempty"`
	BytesPerSecond uint64 `cbor:"7,keyasint,omitempty"`
}
