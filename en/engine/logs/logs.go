// Package logs has the types of requests for the output of containers and of their answers, and the
// interface of its readers. It does no I/O: each container engine has a Reader, that of containers
// on a gateway is logs/ondisk.
//
// A container has up to two streams, stdout and stderr. The bytes and lines of a stream are counted
// from the creation of its container on, so that the size of what is missing is known: a reader
// gets each line, or a Gap in its place. Lines have the times between which they were written,
// which the agent notes about once a second.
package logs

import (
	"context"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
)

// A Reader reads the logs of one node. Its methods may be called concurrently.
type Reader interface {
	// Read yields what a request asks for, in the order of each stream, and the streams of all
	// containers together by time. It ends after the last line, or with Follow when ctx ends. An error ends
	// it, and is yielded with an Entry that says nothing: protocol.Invalid for what Validate refuses,
	// protocol.NotFound where there is no such log, with those that there are, and the error of ctx.
	// Memory does not grow with what is read.
	Read(ctx context.Context, r Request) iter.Seq2[Entry, error]

	// List returns the logs that can be read, sorted: those of containers that exist, and for
	// Previous those that are retained of removed ones.
	List(ctx context.Context) ([]Log, error)
}

// The bounds of a request and of what is given for it.
const (
	// MaxText is the longest Text, in bytes. The rest of a line is left out, and counted in Cut.
	MaxText = 16 << 10
	// MaxTail bounds Request.Tail.
	MaxTail = command.MaxTail
	// MaxGrep bounds Request.Grep, in bytes.
	MaxGrep = 1024
	// TailNone asks for no line that is there already.
	TailNone = -1
)

// A Stream is one of the outputs of a container.
type Stream string

// The streams. A container with a terminal has stdout alone. Mixed has both of a container that runs since
// before agents took them apart.
const (
	Stdout Stream = "stdout" // standard output
	Stderr Stream = "stderr" // standard error
	Mixed  Stream = "mixed"
)

// A Request says which lines are to be read.
type Request struct {
	// Agent asks for the log of the agent, in place of that of a deployment. Where the agent writes to no file, it is
	// protocol.NotFound.
	Agent      bool
	Deployment protocol.DeploymentName
	// Component and Container narrow it down. Empty: all of the deployment, or of the component.
	Component string
	Container string
	// Previous asks for the run before the present one: until the last restart, or the last one of the container
	// that was there before, or of one that was removed.
	Previous bool
	// Since leaves out what was written before. As times are known to about a second, lines of the second before may
	// be among those that are given; none that was written since is missing. Zero: from the beginning.
	Since time.Time
	// Tail asks for the last so many lines of each container, of its streams together. 0: all that there are; TailNone: none.
	Tail int
	// Follow goes on with what is written from then on, also over restarts and new versions of the containers.
	Follow bool
	// Streams are those that the reader wants. Empty: all. Mixed is always included, as the stream of
	// its lines is not known.
	Streams []Stream
	// Grep is a regular expression (RE2) that the text of a line must match. Empty: none. Gaps
	// are given all the same.
	Grep string
}

// An Entry is a line, or a gap where lines are missing.
type Entry struct {
	Deployment protocol.DeploymentName
	Component  string
	Container  string
	Stream     Stream
	// Run counts the runs of the container, from one start to the next, before the one that wrote the line. Those that wrote
	// nothing are left out.
	Run uint32
	// Began is when that run began, by the clock of the node. Zero: it is not known.
	Began time.Time
	// NotBefore and Time are the times, by the clock of the node, between which it was written. They are a second
	// or less apart but for lines that were written while no agent ran, and for old ones: then they are
	// further apart, never wrong. NotBefore is zero where nothing is known.
	NotBefore, Time time.Time
	// Offset is where the line or the gap begins in its stream, in bytes.
	Offset int64
	// Line is the number of the line in its stream, from 1 on, and of the first that is missing in a gap. Where the number of
	// lines in a gap is not known, it counts those that are.
	Line int64
	// Text is the line without its end, as UTF-8: colours are removed, and other control characters and what
	// is no text are written as \x1b. At most MaxText bytes.
	Text string
	// Cut is how many bytes of the line are left out of Text.
	Cut int64
	// Partial says that the line has no beginning, which is in the gap before, or no end yet.
	Partial bool
	// Past says that the line was written before the reading began. For a reader that does not
	// follow, all lines are past.
	Past bool
	// Gap is set where it is none: an Entry without Text.
	Gap *Gap
}

// A Gap is what is missing between two lines of a stream, because it was dropped to keep the log within its
// bounds before it was read.
type Gap struct {
	// Bytes is what was dropped.
	Bytes int64
	// Lines is how many lines were dropped; of one whose end is given as Partial none is counted.
	Lines int64
	// LinesUnknown says that there may have been more: the count was lost in a power cut.
	LinesUnknown bool
}

// A Log is what can be asked for.
type Log struct {
	Deployment protocol.DeploymentName
	Component  string
	Container  string
	// Removed says that its container was removed, and replaced maybe: it is read with Previous.
	Removed bool
	// Runs counts the runs that are in it.
	Runs int
	// Bytes is its size on disk.
	Bytes int64
	// First and Last are the times of its oldest and newest line, as far as they are known.
	First, Last time.Time
}

// Name returns deployment/component/container.
func (l Log) Name() string { return string(l.Deployment) + "/" + l.Component + "/" + l.Container }

// Compare orders logs by their names, then by age.
func (l Log) Compare(m Log) int {
	if c := strings.Compare(l.Name(), m.Name()); c != 0 {
		return c
	}
	return l.Last.Compare(m.Last)
}

// Validate returns the first fault of a request, of kind protocol.Invalid.
func (r Request) Validate() error {
	_, err := r.Filter()
	return err
}

// A Filter decides which lines of a stream a request asks for.
type Filter struct {
	since   time.Time
	pattern *regexp.Regexp
	streams []Stream
}

// Filter returns what the request asks of a line, or its first fault.
func (r Request) Filter() (Filter, error) {
	f := Filter{since: r.Since, streams: r.Streams}
	for _, s := range r.Streams {
		if s != Stdout && s != Stderr && s != Mixed {
			return f, protocol.Errorf(protocol.Invalid, "stream %q: want %s or %s", s, Stdout, Stderr)
		}
	}
	switch {
	case r.Agent && (r.Deployment != "" || r.Previous):
		return f, protocol.Errorf(protocol.Invalid, "log of the agent: it has no deployment and no previous run")
	case !r.Agent && r.Deployment == "":
		return f, protocol.Errorf(protocol.Invalid, "log of which deployment: none is named")
	case r.Container != "" && r.Component == "":
		return f, protocol.Errorf(protocol.Invalid, "container %q without its component: name both", r.Container)
	case r.Tail < TailNone || r.Tail > MaxTail:
		return f, protocol.Errorf(protocol.Invalid, "tail %d: want 1 to %d lines, 0 for all, or %d for none", r.Tail, MaxTail, TailNone)
	case r.Previous && r.Follow:
		return f, protocol.Errorf(protocol.Invalid, "follow the previous run: it has ended, read it without follow")
	case len(r.Grep) > MaxGrep:
		return f, protocol.Errorf(protocol.Invalid, "grep: a pattern of %d bytes, the limit is %d", len(r.Grep), MaxGrep)
	case r.Grep == "":
		return f, nil
	}
	var err error
	if f.pattern, err = regexp.Compile(r.Grep); err != nil {
		return f, protocol.Errorf(protocol.Invalid, "grep %q: %v: want a regular expression as of RE2", r.Grep, err)
	}
	return f, nil
}

// Stream reports whether a stream is asked for.
func (f Filter) Stream(s Stream) bool {
	return len(f.streams) == 0 || s == Mixed || slices.Contains(f.streams, s)
}

// Wants reports whether an entry is asked for.
func (f Filter) Wants(e Entry) bool {
	return !e.Time.Before(f.since) && (e.Gap != nil || f.pattern == nil || f.pattern.MatchString(e.Text))
}

// Of reports whether a request is about a log by its names.
func (r Request) Of(l Log) bool {
	return r.Deployment == l.Deployment && (r.Component == "" || r.Component == l.Component) && (r.Container == "" || r.Container == l.Container)
}

// NotFound says that there is no log for a request, and which there are.
func (r Request) NotFound(all []Log) error {
	what := string(r.Deployment)
	for _, part := range []string{r.Component, r.Container} {
		if part != "" {
			what += "/" + part
		}
	}
	var here, other []string
	removed := false
	for _, l := range all {
		switch {
		case r.Of(l) && l.Removed:
			removed = true
		case l.Deployment == r.Deployment:
			here = append(here, l.Name())
		default:
			other = append(other, string(l.Deployment))
		}
	}
	switch {
	case r.Previous && len(all) > 0 && slices.ContainsFunc(all, r.Of):
		return protocol.Errorf(protocol.NotFound, "no previous log of %s: it has run once, read the present one", what)
	case removed:
		return protocol.Errorf(protocol.NotFound, "no log of %s: its containers were removed; what they wrote last is in the previous log", what)
	case len(here) > 0:
		return protocol.Errorf(protocol.NotFound, "no log of %s: want one of %s", what, list(here))
	case len(other) > 0:
		return protocol.Errorf(protocol.NotFound, "no log of %s on this node: it has those of the deployments %s", what, list(other))
	}
	return protocol.Errorf(protocol.NotFound, "no log of %s: the node has none of any deployment", what)
}

// maxNames is how many names an error lists.
const maxNames = 20

func list(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxNames {
		return strings.Join(names[:maxNames], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}
