package protocol

// A DeviceAccount is an account of a client of the site's broker that is no part of Colony, such as
// a PLC or a SCADA system. It says what the client may publish and subscribe to, and how the client
// authenticates. The CO sets it.
type DeviceAccount struct {
	// User is the user name with which it connects, unique at the site: up to 63 letters,
	// digits, - and _, so that it is none of Colony's own names.
	User string `cbor:"1,keyasint"`
	// ClientIDs are the client ids that it may have; * stands for any characters. Absent:
	// its user name, and what begins with that and a slash.
	ClientIDs []string `cbor:"2,keyasint,omitempty"`

	// Publish are MQTT topic filters (MQTT 5, section 4.7) of the topics that it may publish
	// to, as far as they are open to the site's clients. Absent: none.
	Publish []string `cbor:"3,keyasint,omitempty"`
	// Subscribe are those of the topics that it may receive. Absent: none.
	Subscribe []string `cbor:"4,keyasint,omitempty"`

	// SHA256 is the SHA-256 of its password, which has at least 128 random bits. Absent:
	// Bcrypt is there.
	SHA256 []byte `cbor:"5,keyasint,omitempty"`
	// Bcrypt is the bcrypt hash of a password that a person chose, in its textual form.
	// Absent: SHA256 is there.
	Bcrypt string `cbor:"6,keyasint,omitempty"`
}
