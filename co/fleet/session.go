package fleet

import (
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A SessionReason says why a session ended.
type SessionReason string

// The reasons.
const (
	SessionExited  SessionReason = "exited"           // the program ended; ExitCode is its own
	SessionLeft    SessionReason = "left"             // its user left
	SessionIdle    SessionReason = "idle"             // nothing was typed or shown for too long
	SessionStopped SessionReason = "stopped"          // a person ended it
	SessionLost    SessionReason = "lost"             // no message of the node came for too long: the program is hung up there
	SessionRefused SessionReason = "refused"          // the site or the node did not begin it; the message says why
	SessionFailed  SessionReason = "failed"           // the program could not be started, or followed
	SessionFull    SessionReason = "full"             // it showed as much as is recorded of a session
	SessionUnwrit  SessionReason = "recording_failed" // what it showed could not be recorded
	SessionCO      SessionReason = "co_stopped"       // the CO that carried it stopped
	SessionDenied  SessionReason = "access_ended"     // the token of its user is not valid any more
)

// A Session is a program in a container that a person uses, and the recording of what it showed.
type Session struct {
	ID         command.ID              `json:"id" doc:"that of its command"`
	Site       protocol.SiteID         `json:"site"`
	Node       protocol.NodeID         `json:"node"`
	Deployment protocol.DeploymentName `json:"deployment"`
	Component  string                  `json:"component,omitempty" doc:"as it was asked for, and as it is once the program runs"`
	Container  string                  `json:"container,omitempty" doc:"likewise"`
	Arguments  []string                `json:"arguments" doc:"the program and its arguments"`
	Terminal   bool                    `json:"terminal" doc:"the program has a terminal"`
	Principal  string                  `json:"principal,omitempty" doc:"who is at it; absent: the CO does without tokens"`
	OpenedAt   time.Time               `json:"openedAt"` // when the session was opened
	BeganAt    *time.Time              `json:"beganAt,omitempty" doc:"when the program ran; absent: it does not yet, or never did"`
	EndedAt    *time.Time              `json:"endedAt,omitempty" doc:"absent: it is open"`
	Reason     SessionReason           `json:"reason,omitempty" doc:"why it ended" enum:"exited,left,idle,stopped,lost,refused,failed,full,recording_failed,co_stopped,access_ended"`
	ExitCode   *int32                  `json:"exitCode,omitempty" doc:"of the program, where it ended"`
	Message    string                  `json:"message,omitempty" doc:"the reason, for people"`
	StoppedBy  string                  `json:"stoppedBy,omitempty" doc:"who ended it"`
	Recorded   int64                   `json:"recordedBytes" doc:"size of its recording so far"`
	Digest     protocol.Digest         `json:"digest,omitempty" doc:"of its recording, once it has ended"`
}

// A SessionEnd is how a session ended.
type SessionEnd struct {
	Reason   SessionReason
	ExitCode *int32 // of the program; nil: it did not exit by itself
	Message  string // Reason for people
}

// A SessionFilter picks sessions. Zero fields pick all.
type SessionFilter struct {
	Site   protocol.SiteID
	Open   *bool // nil: all
	Within siteset.Set
}
