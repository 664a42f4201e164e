package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/colonyfleet/colony/en/engine"
)

// ErrFault is an error for Fail where a test has no better one.
var ErrFault = errors.New("fault from the script")

// Fail has the next calls of op end with these errors, one each, nil for none.
func (e *Engine) Fail(op Op, errs ...error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults[op] = append(e.faults[op], errs...)
}

// Calls returns how often op was called.
func (e *Engine) Calls(op Op) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[op]
}

// Exit ends a running container with a code, as a crash does.
func (e *Engine) Exit(id engine.ID, code int32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containers[id]
	if c == nil || c.status.State != engine.Running {
		return fmt.Errorf("container %s does not run", id)
	}
	e.end(c, code)
	return nil
}

// Lose makes the engine unreachable until Return: calls fail, event channels
// close, containers go on.
func (e *Engine) Lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = true
	for s := range e.streams {
		close(s.cut)
		delete(e.streams, s)
	}
}

// Return ends Lose.
func (e *Engine) Return() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = false
}

// Reboot ends all processes without a trace and closes all event channels, as
// a power cut does. Containers, images and earlier exits stay.
func (e *Engine) Reboot() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.containers {
		if c.status.State != engine.Running {
			continue
		}
		if c.timer != nil {
			c.timer.Stop()
		}
		close(c.ended)
		c.ended = nil
		c.status.State = engine.Created
	}
	for s := range e.streams {
		close(s.cut)
		delete(e.streams, s)
	}
}

// Images returns the images that are present, sorted.
func (e *Engine) Images() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.images))
}
