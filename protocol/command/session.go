package command

import (
	"crypto/ed25519"
	"maps"
	"slices"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// MaxArguments bounds the number of ExecRequest.Arguments, and MaxArgumentBytes their size in all.
	MaxArguments     = 256
	MaxArgumentBytes = 8 << 10 // see MaxArguments
	// MaxSegment bounds Segment.Data, in bytes: several fit into the credit that a node has on a slow way.
	MaxSegment = 2 << 10
	// MaxRecord bounds Record.Data, in bytes.
	MaxRecord = 4 << 10
)

// An ExecRequest are the arguments of Exec. It names one container.
type ExecRequest struct {
	Subject
	// Arguments are the program and its arguments, as execve(2) has them.
	Arguments []string `cbor:"4,keyasint" json:"arguments"`
	// Terminal says that the program has a terminal: its outputs are one. Absent: it has none.
	Terminal bool `cbor:"5,keyasint,omitempty" json:"terminal,omitempty"`
	// Columns and Rows are the size of the terminal. Absent: 80 and 24.
	Columns uint16 `cbor:"6,keyasint,omitempty" json:"columns,omitempty"`
	Rows    uint16 `cbor:"7,keyasint,omitempty" json:"rows,omitempty"` // see Columns. Absent: 24.
	// Input says that the program gets what is sent to it. Absent: its input is at its end.
	Input bool `cbor:"8,keyasint,omitempty" json:"input,omitempty"`
	// Key is the public key (Ed25519) of this session alone, by which the CO signs what goes down.
	Key []byte `cbor:"9,keyasint" json:"key"`
}

// Check returns what is wrong with the arguments.
func (r *ExecRequest) Check() error {
	if err := r.Subject.Check(); err != nil {
		return err
	}
	size := 0
	for _, a := range r.Arguments {
		size += len(a)
	}
	switch {
	case len(r.Arguments) == 0 || r.Arguments[0] == "":
		return protocol.Errorf(protocol.Invalid, "no program: name the one that is to run in the container")
	case len(r.Arguments) > MaxArguments || size > MaxArgumentBytes:
		return protocol.Errorf(protocol.Invalid, "%d arguments of %d bytes: the limits are %d and %d", len(r.Arguments), size, MaxArguments, MaxArgumentBytes)
	case slices.ContainsFunc(r.Arguments, func(a string) bool { return strings.ContainsRune(a, 0) }):
		return protocol.Errorf(protocol.Invalid, "an argument has a NUL byte, which execve(2) cannot pass on")
	}
	return checkKey(r.Key)
}

// A Segment is a piece of one of the two directions of a session, each of which is a sequence of bytes that arrives whole and in its
// order: what is not acknowledged is sent again. The bytes are a CBOR sequence (RFC 8742) of Records. Up it is an item of a Frame, down a
// message of its own.
type Segment struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see protocol.Version
	// Node is the node that it is for. Absent: it goes up.
	Node protocol.NodeID `cbor:"1,keyasint,omitempty"`
	// Offset is where Data begins in its direction, in bytes. Absent: at its beginning.
	Offset uint64 `cbor:"2,keyasint,omitempty"`
	// Data is at most MaxSegment bytes. Absent: it only acknowledges, or says that the sender is there.
	Data []byte `cbor:"3,keyasint,omitempty"`
	// Ack is up to where the other direction has arrived, in bytes. Absent: nothing of it has.
	Ack uint64 `cbor:"4,keyasint,omitempty"`
	// Signature is that of the CO for this session (Ed25519, RFC 8032). Absent: it goes up.
	Signature []byte `cbor:"5,keyasint,omitempty"`
}

func (m *Segment) version() uint16 { return m.V }

// segmentContext begins what is signed of a segment, so that it is nothing else.
const segmentContext = "colony session segment 1\x00"

// signed is what the signature is over: the session and all else that the segment says.
func (m *Segment) signed(id ID) []byte {
	rest := *m
	rest.Signature = nil
	return append([]byte(segmentContext+string(id)+"\x00"), protocol.Marshal(&rest)...)
}

// Sign signs a segment of a session, by the private key of ExecRequest.Key. So an attacker between CO and node can withhold input, but cannot forge
// it.
func (m *Segment) Sign(id ID, key ed25519.PrivateKey) { m.Signature = ed25519.Sign(key, m.signed(id)) }

// Verify reports whether the CO signed a segment for a session. It accepts a segment that was sent before: its Offset
// makes the receiver ignore it.
func (m *Segment) Verify(id ID, key []byte) bool {
	return len(key) == ed25519.PublicKeySize && ed25519.Verify(key, m.signed(id), m.Signature)
}

// A RecordKind says what a Record is. The list only grows; a receiver leaves out what it does not know.
type RecordKind string

// The kinds: those that go down, and those that go up.
const (
	Stdin    RecordKind = "stdin"  // Data is for the standard input of the program
	StdinEnd RecordKind = "eof"    // nothing follows on its standard input
	Resize   RecordKind = "resize" // Columns and Rows are the size of its terminal now
	Signal   RecordKind = "signal" // Name is a signal for it, such as INT

	// Dial opens the connection Channel to a forwarded port. Its data are Stdin down and Stdout up, each closed by a StdinEnd. Closed, up or
	// down, ends the connection; Name says why.
	Dial   RecordKind = "dial"
	Closed RecordKind = "closed"

	Began  RecordKind = "began"  // the program runs; Name is its container, as component/container
	Stdout RecordKind = "stdout" // Data is of its standard output, or of its terminal
	Stderr RecordKind = "stderr" // Data is of its standard error
	Exit   RecordKind = "exit"   // it has ended with Code, and nothing follows
)

// A Record is an item of a direction of a session.
type Record struct {
	Kind RecordKind `cbor:"1,keyasint"` // see RecordKind
	// Data is at most MaxRecord bytes. Absent: the kind has none.
	Data []byte `cbor:"2,keyasint,omitempty"`
	// Columns and Rows are of Resize.
	Columns uint16 `cbor:"3,keyasint,omitempty"` // Absent: the kind has none.
	Rows    uint16 `cbor:"4,keyasint,omitempty"` // Absent: the kind has none.
	// Name is as the kind says. Absent: the kind has none.
	Name string `cbor:"5,keyasint,omitempty"`
	// Code is the exit code of the program: 128 and the number of the signal that ended it. Absent: 0.
	Code int32 `cbor:"6,keyasint,omitempty"`
	// Channel is the connection to a port that is forwarded. Absent: it is of a program.
	Channel uint32 `cbor:"7,keyasint,omitempty"`
}

// signals are those that a Record may name, with their numbers in Linux (signal(7)).
var signals = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "TERM": 15, "CONT": 18, "STOP": 19, "TSTP": 20}

// ParseSignal returns the number of a signal. The error is of kind Invalid.
func ParseSignal(name string) (int, error) {
	number, ok := signals[name]
	if !ok {
		return 0, protocol.Errorf(protocol.Invalid, "signal %.20q: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(signals)), ", "))
	}
	return number, nil
}
