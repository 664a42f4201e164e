package state

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/random"
	"github.com/colonyfleet/colony/internal/statefile"
)

// The id of the agent is in two files, so that one that is damaged is written again
// from the other.
//
// The number of a report must be above that of every report before, for the LO takes
// a lower one for a repetition. Its upper bits are the incarnation, which is also in
// the file of the id: where the counter is lost, the next incarnation begins, above
// all that the lost counter can have given.
const incarnationShift = 40

// identity is the content of the file of the id.
type identity struct {
	Agent       string `json:"agent"`
	Incarnation uint64 `json:"incarnation,omitempty"`
}

// counter is the content of the file of the counter.
type counter struct {
	Agent   string `json:"agent,omitempty"`
	Counter uint64 `json:"counter"`
}

func (s *Store) identityFile() statefile.File { return s.file(agentFile, "en/plan", "") }

func (s *Store) counterFile() statefile.File { return s.file(counterFile, "en/counter", "") }

// identity reads the id and the counter, after the records.
func (l loading) identity(names *random.Source) error {
	s, c := l.store, l.c
	var id identity
	hasID, err := l.file(s.identityFile(), func(b []byte) (err error) {
		id, err = parseIdentity(b)
		return err
	})
	if err != nil {
		return err
	}
	var count counter
	hasCount, err := l.file(s.counterFile(), func(b []byte) (err error) {
		count, err = parseCounter(b)
		return err
	})
	if err != nil {
		return err
	}
	if !hasID {
		id = identity{}
	}
	if !hasCount {
		count = counter{}
	}
	seen := count.Counter
	for _, r := range c.Records {
		for _, m := range r.Reports {
			seen = max(seen, m.Seq)
		}
	}
	was := id
	switch {
	case !hasID && count.Agent != "":
		id = identity{Agent: count.Agent}
	case !hasID:
		id = identity{Agent: names.Text("agent")}
		c.Renewed = hasCount || len(c.Damaged) > 0 || len(c.Records) > 0 || c.Desired != nil
	}
	id.Incarnation = max(id.Incarnation, seen>>incarnationShift)
	if hasID && !hasCount {
		id.Incarnation++
	}
	s.agent, c.Agent = id.Agent, id.Agent
	c.Counter = max(seen, id.Incarnation<<incarnationShift)
	// The id first: without it the incarnation would be given a second time.
	// On a full disk both are written before the first report, by the next SaveCounter.
	if id != was {
		s.unsaved = &id
	}
	if s.unsaved != nil || !hasCount || count.Agent != id.Agent || count.Counter != c.Counter {
		if err := s.SaveCounter(c.Counter); err != nil && !disk.IsFull(err) {
			return err
		}
	}
	return nil
}

// parseIdentity reads the file of the id.
func parseIdentity(b []byte) (id identity, err error) {
	if err := json.Unmarshal(b, &id); err != nil {
		return id, err
	}
	if id.Agent == "" {
		return id, errors.New("it names no agent")
	}
	return id, nil
}

// parseCounter reads the file of the counter.
func parseCounter(b []byte) (c counter, err error) {
	err = json.Unmarshal(b, &c)
	return c, err
}

func (s *Store) saveIdentity(id identity) error {
	b, err := json.Marshal(id)
	if err == nil {
		err = s.identityFile().Save(b)
	}
	if err != nil {
		return fmt.Errorf("save agent id: %w", err)
	}
	return nil
}

// SaveCounter writes a number that no report of this agent has reached yet, after the id of the
// agent where that could not be written before.
func (s *Store) SaveCounter(n uint64) error {
	if s.unsaved != nil {
		if err := s.saveIdentity(*s.unsaved); err != nil {
			return err
		}
		s.unsaved = nil
	}
	b, err := json.Marshal(counter{Agent: s.agent, Counter: n})
	if err == nil {
		err = s.counterFile().Save(b)
	}
	if err != nil {
		return fmt.Errorf("save report counter: %w", err)
	}
	return nil
}
