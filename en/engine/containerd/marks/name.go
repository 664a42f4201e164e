// Package marks has what a container is known by in containerd: its key, which is its name
// there, and its labels.
package marks

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// NamePattern is what containerd accepts as a namespace or an id.
var NamePattern = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*$`)

var unfit = regexp.MustCompile(`[^A-Za-z0-9]+`)

// Key returns the name of a container in containerd, in CNI and on disk: unique
// by its hash, within containerd's 76 characters, readable by its front.
func Key(id engine.ID) string {
	sum := sha256.Sum256([]byte(id.String()))
	front := ""
	for _, part := range []string{string(id.Deployment), id.Name} {
		part = strings.Trim(unfit.ReplaceAllString(part, "-"), "-")
		part = strings.Trim(part[:min(len(part), 24)], "-")
		if part != "" {
			front += part + "-"
		}
	}
	return front + hex.EncodeToString(sum[:6])
}

// The labels of a container. The first group never changes.
const (
	Deployment = "colony.deployment" // its name
	Component  = "colony.component"  // of the deployment
	Name       = "colony.name"       // of the service
	Digest     = "colony.digest"     // of the spec
	Image      = "colony.image"      // reference of the image
	Stop       = "colony.stop"       // signal and grace in milliseconds
	NetworkOf  = "colony.network"    // the key of the container whose network it has
	Site       = "colony.site"       // position of the site's desired state that it was made for; absent before 0.3.0

	Started  = "colony.started"  // Unix nanoseconds of the last start
	Restarts = "colony.restarts" // starts after the first
	OOM      = "colony.oom"      // "true" if it ended out of memory
	Exit     = "colony.exit"     // code and Unix nanoseconds; empty while not known to have exited
)

// IDOf returns whose container has these labels.
func IDOf(labels map[string]string) engine.ID {
	return engine.ID{
		Deployment: protocol.DeploymentName(labels[Deployment]),
		Component:  labels[Component],
		Name:       labels[Name],
	}
}

// ParsePosition reads the label Site; zero where it is none.
func ParsePosition(s string) protocol.Position {
	epoch, generation, _ := strings.Cut(s, ".")
	e, err := strconv.ParseUint(epoch, 10, 64)
	g, fault := strconv.ParseUint(generation, 10, 64)
	if err != nil || fault != nil {
		return protocol.Position{}
	}
	return protocol.Position{Epoch: e, Generation: g}
}

// FormatExit returns the label Exit of a container that exited.
func FormatExit(code uint32, at time.Time) string {
	return fmt.Sprintf("%d %d", code, at.UnixNano())
}

// ParseExit reads the label Exit; ok is false where it is empty.
func ParseExit(s string) (code int32, at time.Time, ok bool) {
	var c int32
	var nanos int64
	if _, err := fmt.Sscanf(s, "%d %d", &c, &nanos); err != nil {
		return 0, time.Time{}, false
	}
	return c, time.Unix(0, nanos), true
}

// ParseNanos reads a label that is a time; zero where it is none.
func ParseNanos(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, n)
}
