package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/internal/freeport"
)

// compare takes the place of Mosquitto's comparison of packets.
//
//go:embed compare.py
var compare []byte

// testTime is how long one test may take. The slowest take a quarter of a minute.
const testTime = 2 * time.Minute

// A suite is a run of Mosquitto's tests.
type suite struct {
	source, reasons string
	only            *regexp.Regexp
	jobs            int
	verbose         bool
	broker, script  string // what takes the place of Mosquitto, and of its comparison
}

// An entry is a test of Mosquitto's list.
type entry struct {
	name  string // without .py
	ports int
}

// An outcome is what became of a test.
type outcome struct {
	entry
	passed bool
	served bool   // this broker ran in it
	needs  string // the key of the configuration that the broker does not have
	output []byte
}

func (s *suite) run(ctx context.Context) error {
	list, err := s.list()
	if err != nil {
		return err
	}
	doc, err := os.ReadFile(s.reasons)
	if err != nil {
		return err
	}
	reasons := reasonsIn(string(doc))
	dir, err := os.MkdirTemp("", "mosquitto-suite")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if s.broker, err = linkName(dir); err != nil {
		return err
	}
	s.script = filepath.Join(dir, "compare.py")
	if err := os.WriteFile(s.script, compare, 0o600); err != nil {
		return err
	}
	return s.judge(s.runAll(ctx, list), reasons)
}

// listed is a line of test.py: how many ports, and the file.
var listed = regexp.MustCompile(`(?m)^\s*\((\d+), \[?'\./([\w-]+)\.py'`)

// list reads Mosquitto's own list of its tests.
func (s *suite) list() (list []entry, err error) {
	path := filepath.Join(s.source, "test", "broker", "test.py")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for _, m := range listed.FindAllSubmatch(text, -1) {
		ports, err := strconv.Atoi(string(m[1]))
		if err != nil {
			return nil, err
		}
		name := string(m[2])
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), name+".py")); err != nil {
			fmt.Println("in Mosquitto's list, and not in the package:", name)
		} else if s.only.MatchString(name) {
			list = append(list, entry{name, ports})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: no test that -run names", path)
	}
	return list, nil
}

// linkName makes a name by which this program is a broker, in a folder.
func linkName(dir string) (path string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "mosquitto")
	return path, os.Symlink(self, path)
}

// runAll runs the tests, some at once.
func (s *suite) runAll(ctx context.Context, list []entry) []outcome {
	results := make([]outcome, len(list))
	var wg sync.WaitGroup
	slots := make(chan struct{}, s.jobs)
	for i, e := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			results[i] = s.runOne(ctx, e)
		})
	}
	wg.Wait()
	return results
}

func (s *suite) runOne(ctx context.Context, e entry) outcome {
	out := outcome{entry: e}
	ctx, cancel := context.WithTimeout(ctx, testTime)
	defer cancel()
	dir, err := os.MkdirTemp("", "mosquitto-suite")
	if err != nil {
		out.output = []byte(err.Error())
		return out
	}
	defer os.RemoveAll(dir)
	ports, err := freeport.Find("127.0.0.1", e.ports)
	if err != nil {
		out.output = []byte(err.Error())
		return out
	}
	args := []string{s.script, e.name + ".py"}
	for _, port := range ports {
		args = append(args, strconv.Itoa(port))
	}
	cmd := exec.CommandContext(ctx, "/usr/bin/python3", args...)
	cmd.Dir = filepath.Join(s.source, "test", "broker")
	cmd.Env = append(os.Environ(), "COLONY_SUITE_BROKER="+s.broker, notesDir+"="+dir)
	cmd.WaitDelay = 10 * time.Second // a broker that outlives its test holds the output open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out.output, err = cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the test has left running; mostly nothing
	}
	out.passed = err == nil
	if key, err := os.ReadFile(filepath.Join(dir, noteUnsupported)); err == nil {
		out.needs = string(key)
	}
	_, err = os.Stat(filepath.Join(dir, noteServed))
	out.served = err == nil
	return out
}

// How a reason begins of a test that may pass, too, and of one that needs a key of Mosquitto's configuration.
const (
	sometimes = "Sometimes: "
	unrun     = "Not run: "
)

// reason is a row of the table: a test, or several, and why they fail.
var reason = regexp.MustCompile("(?m)^\\| ((?:`\\d\\d-[\\w.*-]+`(?:, )?)+) \\| (.+) \\|$")

// reasonsIn reads the table of a document: patterns of the names of tests, with why they fail.
func reasonsIn(doc string) map[string]string {
	why := map[string]string{}
	for _, m := range reason.FindAllStringSubmatch(doc, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			why[strings.Trim(name, "`")] = m[2]
		}
	}
	return why
}

// judge compares the outcomes with what the table says, and prints them. Every test that is not run, or fails, has its
// row, and where all tests were run every row has its test.
func (s *suite) judge(results []outcome, reasons map[string]string) error {
	var passed, excused, notRun int
	var wrong []string
	used := map[string]bool{}
	slices.SortFunc(results, func(a, b outcome) int { return strings.Compare(a.name, b.name) })
	for _, r := range results {
		why := r.reason(reasons, used)
		fault := r.fault(why)
		switch {
		case fault != "":
			wrong = append(wrong, r.name+" "+fault)
		case r.needs != "":
			notRun++
			fmt.Printf("none  %s (%s): %s\n", r.name, r.needs, strings.TrimPrefix(why, unrun))
		case r.passed:
			passed++
			fmt.Println("pass ", r.name)
		default:
			excused++
			fmt.Println("table", r.name+":", why)
		}
		if s.verbose && !r.passed && r.needs == "" {
			fmt.Printf("----- %s\n%s\n", r.name, bytes.TrimSpace(r.output))
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(reasons)) {
		if s.only.String() == "" && !used[pattern] {
			wrong = append(wrong, pattern+" is in the table, and no test")
		}
	}
	fmt.Printf("%d passed; %d fail for the reason in the table; %d need what only Mosquitto is configured with\n", passed, excused, notRun)
	if len(wrong) > 0 {
		return fmt.Errorf("%d tests end other than expected:\n%s", len(wrong), strings.Join(wrong, "\n"))
	}
	return nil
}

// reason is what the table says of a test; "": nothing. It notes the row as used.
func (r *outcome) reason(reasons map[string]string, used map[string]bool) (why string) {
	for pattern, w := range reasons {
		if ok, err := filepath.Match(pattern, r.name); ok && err == nil {
			why, used[pattern] = w, true
		}
	}
	return why
}

// fault is what is wrong with an outcome, by what the table says of the test; "": nothing.
func (r *outcome) fault(why string) string {
	switch {
	case r.needs != "" && !strings.HasPrefix(why, unrun):
		return "is not run, for want of " + r.needs + ", and the table does not say why"
	case r.needs != "":
		return ""
	case strings.HasPrefix(why, unrun):
		return "is run, and the table says why it is not: say what becomes of it"
	case r.passed && !r.served:
		return "passes without this broker"
	case r.passed && why != "" && !strings.HasPrefix(why, sometimes):
		return "passes, and the table says why it fails: take it out"
	case !r.passed && why == "":
		return "fails"
	}
	return ""
}
