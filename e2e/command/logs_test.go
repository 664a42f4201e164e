package command_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/command"
	"github.com/colonyfleet/colony/protocol/lifecycle"
	"github.com/colonyfleet/colony/protocol/topic"
)

// credit gives a command credit.
func (c *co) credit(id command.ID, m command.Credit) {
	c.t.Helper()
	m.V = protocol.Version
	if err := c.b.Publish(c.t.Context(), broker.Message{Topic: topic.ForCommand(topic.SiteCredit, plant, string(id)), Payload: protocol.Marshal(&m)}); err != nil {
		c.t.Fatal(err)
	}
}

// lines returns what arrived live, and how it ended; "": it has not.
func (c *co) lines(id command.ID) (lines []command.LogLine, end string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seq, sent := uint64(0), uint64(0) // sent is what the node had had to send before a frame, by its own count
	for _, f := range c.frames[id] {
		if missing := f.TotalItems - min(f.TotalItems, sent+f.Items); missing > 0 || f.LostItems > 0 {
			// Between the node and here: how many lines that were is not known, as items may be gaps.
			lines = append(lines, command.LogLine{LostBytes: max(f.LostBytes, 1)})
		}
		sent = max(sent+f.Items, f.TotalItems)
		if seq++; f.Seq != seq {
			c.t.Errorf("frame %d has number %d", seq, f.Seq)
		}
		for b := f.Data; len(b) > 0; {
			n := command.FirstItem(b)
			var l command.LogLine
			if err := protocol.Unmarshal(b[:n], &l); err != nil {
				c.t.Fatal(err)
			}
			b = b[n:]
			lines = append(lines, l)
		}
		if f.End {
			end = "ended " + string(f.Code)
		}
	}
	return lines, end
}

// on starts an agent with real containers, in a pool of addresses of its own.
func (s *site) on(daemon *containerdtest.Daemon, name protocol.NodeID, pool string) *node {
	s.t.Helper()
	dir := filepath.Join(daemon.Dir, "en")
	return s.join(name, func(o *en.Options) {
		o.Runtime, o.Disk, o.StateDir = nil, nil, dir
		o.Engine.Address, o.Engine.Pool = daemon.Socket, pool
	})
}

// TestRealContainers restarts real containers, and reads and follows their logs.
func TestRealContainers(t *testing.T) {
	t.Parallel()
	daemon, registry, c := containerdtest.Start(t), containerdtest.NewRegistry(t), newCO(t)
	image := registry.Add(t, "tools", containerdtest.Image{Program: containerdtest.Toolbox(t)})
	s := newSite(t, c)
	s.on(daemon, "n1", "10.94.0.0/16")
	c.desire(1,
		protocol.Container{Name: "web", Image: image, Command: []string{"serve", "8080", "text"}, Restart: protocol.Restart{Policy: protocol.RestartAlways}, Health: &protocol.Health{HTTP: "/", Port: 8080}},
		protocol.Container{Name: "blame", Image: image, Command: []string{"blame", "0", "to stderr", "to stdout"}, Restart: protocol.Restart{Policy: protocol.RestartNo}},
		protocol.Container{Name: "count", Image: image, Command: []string{"count"}, Restart: protocol.Restart{Policy: protocol.RestartAlways}},
	)
	c.installed("n1")
	app := command.Subject{Deployment: "app"}
	id := c.send(c.command(command.Probe, app, "n1"))
	if r := c.ends(id, "n1", command.Done, ""); !strings.Contains(r.Output, "main/web: healthy, ") || !strings.Contains(r.Output, "main/blame: has ended with 0\n") {
		t.Errorf("probe: %q", r.Output)
	}
	id = c.send(c.command(command.Pull, app, "n1"))
	if r := c.ends(id, "n1", command.Done, ""); !strings.HasPrefix(r.Output, image+": ") {
		t.Errorf("pull: %q", r.Output)
	}
	// What is written as fast as possible is followed, with what is missing counted, in bounded pieces.
	request := command.LogRequest{Subject: command.Subject{Deployment: "app", Container: "count"}, Follow: true, Tail: 10, Stream: "stdout"}
	id = c.send(c.command(command.Logs, request, "n1"))
	credit := uint64(64 << 10)
	testpart.Eventually(t, "lines of a container that writes all the time arrive", func() bool {
		lines, _ := c.lines(id)
		credit += 16 << 10
		c.credit(id, command.Credit{Bytes: credit})
		return len(lines) >= 5000
	})
	if r := c.last(id, "n1"); r.State != command.Running {
		t.Errorf("while it is followed: %+v", r)
	}
	c.credit(id, command.Credit{Bytes: credit, End: true})
	c.ends(id, "n1", command.Done, "")
	followed, _ := c.lines(id)
	counted(t, followed)

	id = c.send(c.command(command.Restart, app, "n1"))
	if r := c.ends(id, "n1", command.Done, ""); r.Output != "main/count: restarted\nmain/web: restarted\n" {
		t.Errorf("restart: %q", r.Output)
	}
	id = c.send(c.command(command.Restart, command.Subject{Deployment: "app", Container: "blame"}, "n1"))
	c.ends(id, "n1", command.Done, "")
	c.mu.Lock()
	if got := c.moves["n1/app"]; !slices.Equal(got, []lifecycle.State{lifecycle.Installing, lifecycle.Installed}) {
		t.Errorf("states %v: a restart on request is a crash, or a failure", got)
	}
	c.mu.Unlock()

	request = command.LogRequest{Subject: command.Subject{Deployment: "app", Container: "blame"}, Stream: "stderr"}
	id = c.send(c.command(command.Logs, request, "n1"))
	testpart.Eventually(t, "the log is read to its end", func() bool {
		c.credit(id, command.Credit{Bytes: 1 << 20})
		_, end := c.lines(id)
		return end != ""
	})
	if lines, end := c.lines(id); len(lines) == 0 || texts(lines)[0] != "main/blame stderr to stderr" || end != "ended " {
		t.Errorf("lines %+v, %s", lines, end)
	}
	c.ends(id, "n1", command.Done, "")

	id = c.send(c.command(command.Logs, command.LogRequest{Subject: command.Subject{Deployment: "app", Container: "db"}}, "n1"))
	if r := c.ends(id, "n1", command.Failed, command.NoSuchSubject); !strings.Contains(r.Message, "app/main/web") {
		t.Errorf("log of no container: %q", r.Message)
	}
	unread := c.send(c.command(command.Logs, command.LogRequest{Subject: command.Subject{Deployment: "app", Container: "count"}, Follow: true}, "n1"))
	c.ends(unread, "n1", command.Failed, command.NotFollowed)
}

// texts are lines as people see them.
func texts(lines []command.LogLine) (out []string) {
	for _, l := range lines {
		out = append(out, fmt.Sprintf("%s/%s %s %s", l.Component, l.Container, l.Stream, l.Text))
	}
	return out
}

// counted checks that each number follows the one before it, but for those that a gap counts.
func counted(t *testing.T, lines []command.LogLine) {
	t.Helper()
	last, missing, parts, seen, unknown := -1, 0, 0, 0, false
	for _, l := range lines[:max(len(lines)-1, 0)] { // the last one may have no end yet
		if l.LostBytes > 0 {
			missing += int(l.LostLines)
			unknown = unknown || l.LostLines == 0
			continue
		}
		if l.Partial { // the rest is in the gap, which counts the line where that has its end
			parts++
			continue
		}
		digits := strings.TrimFunc(l.Text, func(r rune) bool { return r < '0' || r > '9' })
		n, err := strconv.Atoi(digits[strings.LastIndexByte(digits, ' ')+1:])
		if err != nil {
			continue // it is cut at its beginning
		}
		if least := last + 1 + missing; last >= 0 && (n < least || n > least+parts && !unknown) {
			t.Fatalf("number %d follows %d, with %d missing", n, last, missing)
		}
		last, missing, parts, unknown = n, 0, 0, false
		seen++
	}
	if seen < 4000 {
		t.Errorf("%d numbers in %d lines", seen, len(lines))
	}
}
