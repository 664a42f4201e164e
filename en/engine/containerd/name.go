package containerd

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/protocol"
)

// namePattern is what containerd accepts as a namespace or an id.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*$`)

var unfit = regexp.MustCompile(`[^A-Za-z0-9]+`)

// key returns the name of a container in containerd, in CNI and on disk: unique
// by its hash, within containerd's 76 characters, readable by its front.
func key(id engine.ID) string {
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
	labelDeployment = "colony.deployment"
	labelComponent  = "colony.component"
	labelName       = "colony.name"
	labelDigest     = "colony.digest"
	labelImage      = "colony.image"
	labelStop       = "colony.stop"    // signal and grace in milliseconds
	labelNetworkOf  = "colony.network" // the key of the container whose network it has

	labelStarted  = "colony.started"  // Unix nanoseconds of the last start
	labelRestarts = "colony.restarts" // starts after the first
	labelOOM      = "colony.oom"      // "true" if it ended out of memory
	labelExit     = "colony.exit"     // code and Unix nanoseconds; empty while not known to have exited
)

func idOf(labels map[string]string) engine.ID {
	return engine.ID{
		Deployment: protocol.DeploymentName(labels[labelDeployment]),
		Component:  labels[labelComponent],
		Name:       labels[labelName],
	}
}

func formatExit(code uint32, at time.Time) string {
	return fmt.Sprintf("%d %d", code, at.UnixNano())
}

func parseExit(s string) (code int32, at time.Time, ok bool) {
	var c int32
	var nanos int64
	if _, err := fmt.Sscanf(s, "%d %d", &c, &nanos); err != nil {
		return 0, time.Time{}, false
	}
	return c, time.Unix(0, nanos), true
}

func parseNanos(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, n)
}

// dir returns the directory of what we keep for a container.
func (e *Engine) dir(key string, parts ...string) string {
	return filepath.Join(append([]string{e.opts.StateDir, "containers", key}, parts...)...)
}
