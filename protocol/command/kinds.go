package command

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/restriction"
)

// A Kind is what a command asks for. The list only grows.
type Kind string

// The kinds, each with the type of its arguments.
const (
	Restart   Kind = "restart"       // Subject: restart a deployment, a component or a container of it
	Probe     Kind = "probe"         // Subject: run the health checks now, and say what they answer
	Pull      Kind = "pull"          // Subject: pull the images of a deployment now
	Inventory Kind = "inventory"     // no arguments: look at the machine again, and report it
	Check     Kind = "network-check" // NetworkCheck: can the node reach an address
	Logs      Kind = "logs"          // LogRequest: the log of a container; live, in LogLines
	Exec      Kind = "exec"          // ExecRequest: a session with a program in a container; live, in Segments
	Forward   Kind = "forward"       // ForwardRequest: connections to a port of a container; live, in Segments
	Diagnose  Kind = "diagnostics"   // DiagnosticsRequest: an archive of what the node knows of itself; live, in Segments
	Files     Kind = "files"         // FilesRequest: an archive of files of the node; live, in Segments
	Cordon    Kind = "cordon"        // Restriction: place nothing new on the node
	Uncordon  Kind = "uncordon"      // no arguments: end a cordon or a drain
	Drain     Kind = "drain"         // Restriction: as cordon, and move away what can move
	Hold      Kind = "hold"          // Restriction: install, update, move and remove nothing on the node
	Release   Kind = "release"       // no arguments: end a hold
)

// A Definition says of a kind what all tiers must know.
type Definition struct {
	Kind Kind
	// About says what it does, in a sentence for people.
	About string
	// Repeatable says that to do it twice does no harm: after a crash it is done again, and does not end as Unknown.
	Repeatable bool
	// Live says that it sends Frames, and needs Credit.
	Live bool
	// Budget is the default of Command.Budget, in bytes.
	Budget uint64
	// Limit is how long a node executes it, at most. The tiers above wait for its end as long.
	Limit time.Duration
	// ByLO says that the LO of the site carries it out for its nodes, which get nothing of it and need not be online.
	ByLO bool
}

// collectBudget is what the kinds that collect may send, with what is sent again, in bytes.
const collectBudget = 256 << 20

// Definitions are those of all kinds, in their order.
func Definitions() []Definition {
	return []Definition{
		{Kind: Restart, About: "restart the containers of a deployment, or one of them", Limit: 10 * time.Minute},
		{Kind: Probe, About: "run the health checks of a deployment now", Repeatable: true, Limit: 2 * time.Minute},
		{Kind: Pull, About: "pull the images of a deployment now, before it needs them", Repeatable: true, Limit: time.Hour},
		{Kind: Inventory, About: "look at the machine again and report it", Repeatable: true, Limit: time.Minute},
		{Kind: Check, About: "try to reach an address from the node: by name, by ping or by a connection", Repeatable: true, Limit: 2 * time.Minute},
		{Kind: Logs, About: "read or follow the log of a container", Repeatable: true, Live: true, Budget: 1 << 30, Limit: 12 * time.Hour},
		{Kind: Exec, About: "run a program in a container, interactively", Live: true, Budget: 1 << 30, Limit: 12 * time.Hour},
		{Kind: Forward, About: "forward connections to a port of a container", Live: true, Budget: 1 << 30, Limit: 12 * time.Hour},
		{Kind: Diagnose, About: "collect what the node knows of itself", Live: true, Budget: collectBudget, Limit: 12 * time.Hour},
		{Kind: Files, About: "collect files of the node that its configuration names", Live: true, Budget: collectBudget, Limit: 12 * time.Hour},
		{Kind: Cordon, About: "place nothing new on a node", ByLO: true, Limit: time.Minute},
		{Kind: Uncordon, About: "end a cordon or a drain of a node", ByLO: true, Limit: time.Minute},
		{Kind: Drain, About: "place nothing new on a node, and move away what can move", ByLO: true, Limit: time.Minute},
		{Kind: Hold, About: "install, update, move and remove nothing on a node", ByLO: true, Limit: time.Minute},
		{Kind: Release, About: "end a hold of a node", ByLO: true, Limit: time.Minute},
	}
}

// LimitOf returns how long a node executes a command of a kind, at most; of one that is not known the longest limit that there is.
func LimitOf(kind Kind) (limit time.Duration) {
	for _, d := range Definitions() {
		if d.Kind == kind {
			return d.Limit
		}
		limit = max(limit, d.Limit)
	}
	return limit
}

// Lookup returns the definition of a kind.
func Lookup(kind Kind) (Definition, error) {
	all := Definitions()
	i := slices.IndexFunc(all, func(d Definition) bool { return d.Kind == kind })
	if i < 0 {
		var names []string
		for _, d := range all {
			names = append(names, string(d.Kind))
		}
		return Definition{}, protocol.Errorf(protocol.Invalid, "command of kind %q: want one of %s", kind, strings.Join(names, ", "))
	}
	return all[i], nil
}

// Args are the arguments of a kind.
type Args interface {
	// Check returns what is wrong with them.
	Check() error
}

// NewArgs returns arguments of a kind, to decode into; nil where the kind has none, or is not known, which is the error.
func NewArgs(kind Kind) (Args, error) {
	switch kind {
	case Restart, Probe, Pull:
		return &Subject{}, nil
	case Check:
		return &NetworkCheck{}, nil
	case Logs:
		return &LogRequest{}, nil
	case Exec:
		return &ExecRequest{}, nil
	case Forward:
		return &ForwardRequest{}, nil
	case Diagnose:
		return &DiagnosticsRequest{}, nil
	case Files:
		return &FilesRequest{}, nil
	case Cordon, Drain, Hold:
		return &Restriction{}, nil
	}
	_, err := Lookup(kind)
	return nil, err
}

// Arguments checks the encoded arguments of a kind: that they are of its type, and may be.
func Arguments(kind Kind, args []byte) error {
	checked, err := NewArgs(kind)
	if err != nil {
		return err
	}
	if checked == nil {
		if len(args) > 0 {
			return protocol.Errorf(protocol.Invalid, "command of kind %s: it has no arguments", kind)
		}
		return nil
	}
	if len(args) == 0 {
		return protocol.Errorf(protocol.Invalid, "command of kind %s: its arguments are missing", kind)
	}
	if err := protocol.Unmarshal(args, checked); err != nil {
		return err
	}
	return checked.Check()
}

// A Subject is what a command is about: a deployment, or a part of it.
type Subject struct {
	// Deployment is its name.
	Deployment protocol.DeploymentName `cbor:"1,keyasint" json:"deployment"`
	// Component is the component. Absent: all of them.
	Component string `cbor:"2,keyasint,omitempty" json:"component,omitempty"`
	// Container is the container of the component, the service of a Compose file. Absent: all of them.
	Container string `cbor:"3,keyasint,omitempty" json:"container,omitempty"`
}

// Check returns what is wrong with a subject.
func (s *Subject) Check() error {
	if _, err := protocol.ParseDeploymentName(string(s.Deployment)); err != nil {
		return err
	}
	if len(s.Component) > maxName || len(s.Container) > maxName {
		return protocol.Errorf(protocol.Invalid, "the name of a component or container has more than %d bytes", maxName)
	}
	return nil
}

// Has reports whether a container of a component of the deployment is part of the subject.
func (s *Subject) Has(component, container string) bool {
	return (s.Component == "" || s.Component == component) && (s.Container == "" || s.Container == container)
}

const (
	maxName = 255
	maxGrep = 1024
	// MaxTail bounds LogRequest.Tail, on all tiers: an agent keeps the places of so many lines of each container in memory.
	MaxTail = 100_000
)

// A Method is how a NetworkCheck tries.
type Method string

// The methods.
const (
	Resolve Method = "dns"  // look a name up
	Connect Method = "tcp"  // open a connection, and close it
	Ping    Method = "ping" // ICMP echo (RFC 792, RFC 4443)
)

// NetworkCheck are the arguments of Check.
type NetworkCheck struct {
	// Method is how to try.
	Method Method `cbor:"1,keyasint" json:"method"`
	// Target is a host name or an address; for Connect with its port, as host:port.
	Target string `cbor:"2,keyasint" json:"target"`
	// Count is how often to try, at most 10. Absent: once.
	Count uint8 `cbor:"3,keyasint,omitempty" json:"count,omitempty"`
}

// Check returns what is wrong with the arguments.
func (c *NetworkCheck) Check() error {
	switch {
	case c.Method != Resolve && c.Method != Connect && c.Method != Ping:
		return protocol.Errorf(protocol.Invalid, "network check by %q: want dns, tcp or ping", c.Method)
	case c.Target == "" || len(c.Target) > maxName || strings.ContainsAny(c.Target, " \t\r\n/"):
		return protocol.Errorf(protocol.Invalid, "network check of %.80q: want a host name or an address, with a port for tcp", c.Target)
	case c.Count > 10:
		return protocol.Errorf(protocol.Invalid, "network check %d times: the limit is 10", c.Count)
	}
	return nil
}

// A LogRequest are the arguments of Logs.
type LogRequest struct {
	Subject
	// Previous asks for the log of the container before the one that runs: that of a failed or replaced version. Absent: of the current one.
	Previous bool `cbor:"4,keyasint,omitempty" json:"previous,omitempty"`
	// Follow asks to go on with new lines as they come. Absent: to end with what there is.
	Follow bool `cbor:"5,keyasint,omitempty" json:"follow,omitempty"`
	// SinceMillis leaves out lines that are older, in milliseconds before the node begins. Absent: no line is too old.
	SinceMillis uint64 `cbor:"6,keyasint,omitempty" json:"sinceMillis,omitempty"`
	// Tail leaves out all but the last lines of each container, at most MaxTail. Absent: none is left out.
	Tail uint64 `cbor:"7,keyasint,omitempty" json:"tail,omitempty"`
	// Grep leaves out lines that the regular expression (RE2) does not match. Absent: none is left out.
	Grep string `cbor:"8,keyasint,omitempty" json:"grep,omitempty"`
	// Stream leaves out the other stream: stdout or stderr. Absent: both.
	Stream string `cbor:"9,keyasint,omitempty" json:"stream,omitempty"`
	// Numbered asks for Run and Number of each line. Absent, or an agent that does not know it: lines have neither.
	Numbered bool `cbor:"10,keyasint,omitempty" json:"numbered,omitempty"`
	// Resumed says that the reader goes on after its connection broke: with Follow the oldest lines are left out where it is too slow for what was
	// written meanwhile. Absent, or an agent that does not know it: what was there before the request comes whole.
	Resumed bool `cbor:"11,keyasint,omitempty" json:"resumed,omitempty"`
}

// Check returns what is wrong with the arguments.
func (r *LogRequest) Check() error {
	if err := r.Subject.Check(); err != nil {
		return err
	}
	switch {
	case r.Stream != "" && r.Stream != "stdout" && r.Stream != "stderr":
		return protocol.Errorf(protocol.Invalid, "log stream %.20q: want stdout or stderr", r.Stream)
	case r.Tail > MaxTail:
		return protocol.Errorf(protocol.Invalid, "the last %d lines of a log: the limit is %d", r.Tail, MaxTail)
	case len(r.Grep) > maxGrep:
		return protocol.Errorf(protocol.Invalid, "a pattern of %d bytes: the limit is %d", len(r.Grep), maxGrep)
	case r.Follow && r.Previous:
		return protocol.Errorf(protocol.Invalid, "the previous log of a container gets no new lines: leave out follow or previous")
	}
	if _, err := regexp.Compile(r.Grep); err != nil {
		return &protocol.Error{Kind: protocol.Invalid, Message: fmt.Sprintf("pattern %.80q: %v", r.Grep, err), Err: err}
	}
	return nil
}

// Restriction are the arguments of Cordon, Drain and Hold.
type Restriction struct {
	// Reason is why, for people.
	Reason string `cbor:"1,keyasint" json:"reason"`
	// ForMillis is how long it lasts from the issue of the command on, in milliseconds. Absent: until a person
	// ends it.
	ForMillis uint64 `cbor:"2,keyasint,omitempty" json:"forMillis,omitempty"`
	// Force says of Drain that replicas with volumes or devices move, too: the volumes stay behind on the node. Absent: they stay.
	Force bool `cbor:"3,keyasint,omitempty" json:"force,omitempty"`
}

// Check returns what is wrong with the arguments.
func (r *Restriction) Check() error {
	if r.ForMillis > uint64(restriction.MaxFor.Milliseconds()) {
		return protocol.Errorf(protocol.Invalid, "for %d ms: the limit is %s", r.ForMillis, restriction.MaxFor)
	}
	return restriction.CheckTerms(r.Reason, time.Duration(r.ForMillis)*time.Millisecond)
}

// A LogLine is an item of the frames of Logs: a line, or where Lost is set, a gap before the next one.
type LogLine struct {
	// Component and Container are whose line it is.
	Component string `cbor:"1,keyasint,omitempty" json:"component,omitempty"` // Absent: that of the item before it in the frame.
	Container string `cbor:"2,keyasint,omitempty" json:"container,omitempty"` // Absent: that of the item before it in the frame.
	// Stream is stdout or stderr. Absent: not known, as they are one.
	Stream string `cbor:"3,keyasint,omitempty" json:"stream,omitempty"`
	// UnixMillis is when the node read or wrote it, by its clock, in milliseconds since 1970. Absent: not known.
	UnixMillis int64 `cbor:"4,keyasint,omitempty" json:"unixMillis,omitempty"`
	// Text is the line without its end, in UTF-8. Absent: it is empty.
	Text string `cbor:"5,keyasint,omitempty" json:"text,omitempty"`
	// CutBytes says how much of the line was left out at its end, in bytes. Absent: nothing.
	CutBytes uint64 `cbor:"6,keyasint,omitempty" json:"cutBytes,omitempty"`
	// LostLines and LostBytes say what the node no longer has before the next line. LostLines is absent where only the bytes are known.
	LostLines uint64 `cbor:"7,keyasint,omitempty" json:"lostLines,omitempty"`
	LostBytes uint64 `cbor:"8,keyasint,omitempty" json:"lostBytes,omitempty"` // in bytes. Absent: nothing was lost.
	// Partial says that the line has no beginning, which is in the gap before it, or no end yet. Absent: it is whole, but for CutBytes.
	Partial bool `cbor:"9,keyasint,omitempty" json:"partial,omitempty"`
	// Run names the run of the container that wrote the line: the lower 32 bits of when it began, in milliseconds since 1970 by the clock of the node. Absent: it
	// was not asked for, or is not known.
	Run uint32 `cbor:"10,keyasint,omitempty" json:"run,omitempty"`
	// Number is that of the line in its stream, from the creation of the container on, from 1. Absent: as Run.
	Number uint64 `cbor:"11,keyasint,omitempty" json:"number,omitempty"`
}

// A Code says why a command did not do what was asked, for programs. The list only grows.
type Code string

// The codes.
const (
	UnknownKind          Code = "unknown_kind"          // the agent, or the LO, is of a release that does not know the kind
	BadSignature         Code = "bad_signature"         // the statement does not count; the message has the reason
	NotMeant             Code = "not_meant"             // the command does not name this node
	BadArguments         Code = "bad_arguments"         // the arguments are not of the kind
	DeadlineUnverifiable Code = "deadline_unverifiable" // the time of the CO could not be learnt before it would have passed
	IssuedBeforeAgent    Code = "issued_before_agent"   // the agent enrolled, or lost its state, after the command was issued
	NoSuchSubject        Code = "no_such_subject"       // the node does not have the deployment, the component or the container
	Forbidden            Code = "forbidden"             // the site or the node does not allow the kind
	Busy                 Code = "busy"                  // as many commands are under way as the node allows
	TimedOut             Code = "timed_out"             // the execution took longer than the kind allows
	Interrupted          Code = "interrupted"           // the agent ended while it was under way
	Cancelled            Code = "cancelled"             // the operator cancelled it before it began
	NodeAway             Code = "node_away"             // the node did not connect before the deadline
	NoNode               Code = "no_node"               // the site has no node that is meant
	NotFollowed          Code = "not_followed"          // the lease of its output was not renewed
	BudgetUsed           Code = "budget_used"           // it sent as much as it was allowed to
	ExecutionFailed      Code = "execution_failed"      // what was done failed; the message says how
)

// Label returns the code as the label of a metric, of which there are so many.
func (c Code) Label() string {
	if slices.Contains(Codes(), c) {
		return string(c)
	}
	return other
}

// Codes are all of them, in their order.
func Codes() []Code {
	return []Code{UnknownKind, BadSignature, NotMeant, BadArguments, DeadlineUnverifiable, IssuedBeforeAgent, NoSuchSubject, Forbidden, Busy, TimedOut, Interrupted, Cancelled, NodeAway, NoNode, NotFollowed, BudgetUsed, ExecutionFailed}
}
