// Package doctor runs checks of a tier and of its machine, and shows what they find, each
// fault with what to do. A check is one function and one entry in the list of its tier.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Timeout is how long a check may take; one that takes longer failed.
const Timeout = 15 * time.Second

// A Status says how serious a finding is.
type Status string

// The statuses, from good to bad.
const (
	OK   Status = "ok"   // nothing is wrong
	Warn Status = "warn" // it works, and is going to make trouble
	Fail Status = "fail" // something does not work
)

// A Finding is what a check says of one thing.
type Finding struct {
	// Check is the name of the check; Run sets it.
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Message says what was found, about which thing.
	Message string `json:"message"`
	// Fix says what to do; empty where Status is OK.
	Fix string `json:"fix,omitempty"`
}

// Okf is a Finding of something that is as it should be.
func Okf(format string, args ...any) Finding {
	return Finding{Status: OK, Message: fmt.Sprintf(format, args...)}
}

// Warnf is a Finding with a warning.
func Warnf(fix, format string, args ...any) Finding {
	return Finding{Status: Warn, Message: fmt.Sprintf(format, args...), Fix: fix}
}

// Failf is a Finding of something that does not work.
func Failf(fix, format string, args ...any) Finding {
	return Finding{Status: Fail, Message: fmt.Sprintf(format, args...), Fix: fix}
}

// A Check looks at one thing, or at several of one kind.
type Check struct {
	// Name is one word, or a few with dashes.
	Name string
	// Run returns a finding for each thing. It ends with ctx, changes nothing that stays,
	// and may be called at the same time as others.
	Run func(ctx context.Context) []Finding
}

// A Report is what all checks of a tier found.
type Report struct {
	// Tier is co, lo or en.
	Tier string `json:"tier"`
	// Version is that of the program that checked.
	Version string `json:"version"`
	// Status is the worst of the findings.
	Status   Status    `json:"status"`
	Findings []Finding `json:"findings"` // of all checks, in their order
}

// Run runs the checks at the same time and returns their findings in the order of the
// checks.
func Run(ctx context.Context, tier, version string, checks []Check) Report {
	found := make([][]Finding, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { found[i] = run(ctx, c) })
	}
	wg.Wait()
	r := Report{Tier: tier, Version: version, Status: OK, Findings: []Finding{}}
	for i, list := range found {
		for _, f := range list {
			f.Check, f.Message = checks[i].Name, oneLine(f.Message)
			r.Findings = append(r.Findings, f)
			if f.Status == Fail || f.Status == Warn && r.Status == OK {
				r.Status = f.Status
			}
		}
	}
	return r
}

// oneLine joins the lines of a text, such as of another program's error.
func oneLine(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// run runs one check, and does not wait for one that hangs, as on a dead network disk.
func run(ctx context.Context, c Check) []Finding {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	done := make(chan []Finding, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case found := <-done:
		return found
	case <-ctx.Done():
		select {
		case found := <-done: // it ended with ctx, and says more
			return found
		case <-time.After(time.Second):
			return []Finding{Failf("look at what it waits for: a disk, a network file system, a name server", "no answer within %s", Timeout)}
		}
	}
}

// WriteJSON writes the report as one JSON object.
func (r Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// WriteText writes a line for each finding, the fix below it, and a summary.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	width, count := 0, map[Status]int{}
	for _, f := range r.Findings {
		width = max(width, len(f.Check))
		count[f.Status]++
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", f.Status, width, f.Check, f.Message)
		if f.Fix != "" {
			fmt.Fprintf(&b, "%*s  fix: %s\n", width+6, "", f.Fix)
		}
	}
	fmt.Fprintf(&b, "%s %s: %d ok, %d warn, %d fail\n", r.Tier, r.Version, count[OK], count[Warn], count[Fail])
	_, err := io.WriteString(w, b.String())
	return err
}

// Write writes the report as text, or as JSON.
func (r Report) Write(w io.Writer, asJSON bool) error {
	if asJSON {
		return r.WriteJSON(w)
	}
	return r.WriteText(w)
}

// Err is an error where something does not work; warnings are none.
func (r Report) Err() error {
	n := 0
	for _, f := range r.Findings {
		if f.Status == Fail {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d checks failed: each says how to fix it", n, len(r.Findings))
}
