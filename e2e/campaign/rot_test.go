package campaign

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/shims"
)

var (
	rotSamples = flag.Int("damages", 10, "how many files TestRot damages")
	rotSeed    = flag.Uint64("damage-seed", 1, "decides what TestRot damages; the names of some files, and so their order, differ between runs")
	rotOf      = flag.String("damage-of", "", "have TestRot damage only files that have this in their path")
)

// TestRot damages files of the LO and of the agent between a kill and the start, one after
// the other, while containers run and machine data is published. Nothing of it may be
// obeyed as other content, be lost in silence, remove a container or a volume, or keep a
// tier from starting. The fleet has certificates and signatures; a machine whose own were
// damaged gets a join token, as an operator gives it one.
func TestRot(t *testing.T) {
	t.Parallel()
	c := newColony(t, built(t), built(t), built(t))
	c.certify()
	r := &rot{plc: &plc{colony: c}, random: rand.New(rand.NewPCG(*rotSeed, 1)), addressee: "World"}
	r.begin()
	seen := map[string]int{}
	for i := range *rotSamples {
		d := r.sample(i)
		seen[d.kind]++
		if t.Failed() {
			t.Fatalf("sample %d of seed %d, %s: see above; play it again with -damages %d -damage-seed %d", i, *rotSeed, d, i+1, *rotSeed)
		}
	}
	r.finish()
	t.Logf("%d damages %v, %d unread so far, %d messages acknowledged, %d of them lost and counted", *rotSamples, seen, r.unread, len(r.acked), r.lost)
}

// rot is one run of TestRot.
type rot struct {
	*plc
	random    *rand.Rand
	addressee string
	boxes     []shims.Shim
	marker    string // a file in the volume of keeper
	lost      int64
	unread    int // damages of files that were not read since
}

// begin starts the fleet with two deployments and a rule of machine data.
func (r *rot) begin() {
	r.t.Helper()
	r.up()
	r.must("deploy", "hello@1.0.0", "--site", site, "--set", fmt.Sprintf("port=%d", r.port))
	r.must("deploy", "keeper", "--site", site)
	r.plc = r.connect()
	r.settle()
	data, err := filepath.Glob(filepath.Join(r.en.state, "engine", "volumes", "keeper", "*"))
	if err != nil || len(data) != 1 {
		r.t.Fatalf("volumes of keeper: %q, %v", data, err)
	}
	r.marker = filepath.Join(data[0], "marker")
	if err := os.WriteFile(r.marker, []byte("keep me"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.publish(5)
	r.boxes = r.running()
}

// running returns the shims of the containers.
func (r *rot) running() []shims.Shim {
	r.t.Helper()
	found, err := shims.Find(r.daemon.Socket, r.engine.Namespace)
	if err != nil || len(found) != 2 {
		r.t.Fatalf("shims %+v, %v; want those of hello and keeper", found, err)
	}
	return found
}

// sample damages one file and waits until all is as it was.
func (r *rot) sample(i int) damage {
	r.t.Helper()
	p := r.victim()
	waiting := r.random.IntN(2) == 0 // the LO holds what the CO does not have
	if waiting {
		r.co.Kill()
		r.publish(8)
	}
	before, mark := r.presence(), r.mark()
	p.Kill()
	paths, err := persistent(p.state)
	if err != nil || len(paths) == 0 {
		r.t.Fatalf("%d files of %s below %s: %v", len(paths), p.role, p.state, err)
	}
	d := draw(r.random, paths)
	unread := superseded(d.path)
	err = d.do(r.random)
	same := errors.Is(err, errSame)
	if err != nil && !same {
		r.t.Fatal(err)
	}
	r.t.Logf("%d: %s, waiting %t", i, d, waiting)
	was, said := aside(p.state), logged(r.t, p)
	p.start()
	if waiting {
		r.co.start()
		r.serves(r.co, r.http, "/readyz")
	}
	if file := d.path + d.with; strings.Contains(file, "/identity/machine.") || strings.Contains(file, "/identity/issuer.") {
		r.admit(p)
	}
	r.serves(r.lo, r.loHTTP, "/healthz")
	r.eventually(fmt.Sprintf("after %s the node is at the LO again", d), func() error {
		if err := errors.Join(r.lo.Running(), r.en.Running()); err != nil {
			r.t.Fatal(err)
		}
		if now := r.presence(); p == r.en && !now.After(before) {
			return fmt.Errorf("the agent has not been online since %s", now)
		}
		return nil
	})
	r.settle()
	r.whole(d)
	noticed := func() bool { return same || d.noticed(was, aside(p.state), logged(r.t, p)[len(said):]) }
	switch {
	case noticed():
	case unread || d.tolerated():
		r.unread++
	default: // by the sweep after the start, which nothing waits for
		r.eventually(fmt.Sprintf("somebody reports %s", d), func() error {
			if !noticed() {
				return errors.New("nobody has")
			}
			return nil
		})
	}
	r.counted(mark)
	if i%5 == 4 {
		r.change()
	}
	return d
}

// victim chooses the tier that loses a file.
func (r *rot) victim() *tier {
	r.t.Helper()
	var can []*tier
	for _, p := range []*tier{r.lo, r.en} {
		if paths, err := persistent(p.state); err != nil {
			r.t.Fatal(err)
		} else if len(paths) > 0 {
			can = append(can, p)
		}
	}
	if len(can) == 0 {
		r.t.Fatalf("no file has %q in its path", *rotOf)
	}
	return can[r.random.IntN(len(can))]
}

// mark returns the id of the newest event; it works while the CO does not run.
func (r *rot) mark() int64 {
	r.t.Helper()
	n, err := r.query("select coalesce(max(id), 0) from events")
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// presence returns since when the node is online, by the LO; zero: it is not.
func (r *rot) presence() time.Time {
	s, err := r.site()
	if err != nil || len(s.Nodes) != 1 || !s.Nodes[0].Online {
		return time.Time{}
	}
	return s.Nodes[0].Changed
}

// settle waits until both deployments run as the CO wants them, and the CO has all that the
// site holds for it.
func (r *rot) settle() {
	r.t.Helper()
	r.eventually("all is as it should be", func() error {
		s, err := r.site()
		if err != nil {
			return err
		}
		queued := s.Journal.Depth
		for _, d := range s.Data {
			queued += d.Queued
		}
		if queued != 0 || len(s.Nodes) != 1 || len(s.Nodes[0].Deployments) != 2 || s.DataFault != "" {
			return fmt.Errorf("%d events wait at the site; %+v", queued, s)
		}
		if len(s.NotEnrolled) > 0 {
			return fmt.Errorf("the LO says that %q have no certificate", s.NotEnrolled)
		}
		return errors.Join(r.online(), r.runs("hello", "1.0.0"), r.runs("keeper", "1.0.0"), r.greets("Hello, "+r.addressee+"! I am version 1.0.0."))
	})
}

// whole checks that no container and no volume was removed.
func (r *rot) whole(d damage) {
	r.t.Helper()
	if now := r.running(); !slices.EqualFunc(now, r.boxes, func(a, b shims.Shim) bool { return a.PID == b.PID && a.Container == b.Container }) {
		r.t.Errorf("after %s the containers are others: %+v, were %+v", d, now, r.boxes)
	}
	if b, err := os.ReadFile(r.marker); err != nil || string(b) != "keep me" {
		r.t.Errorf("after %s the volume holds %q, %v", d, b, err)
	}
}

// A tolerance is of files of which a damage need not be reported at the start.
type tolerance struct {
	part, reason string
	from         int64 // offset behind which this holds
}

var tolerated = []tolerance{
	{"/engine/cni/", "it is written by the network plugins, which check nothing; the containers must be reached, and the next change must work", 0},
	{"/hosts", "the container may write to it, so that nobody can tell; it is written anew when it starts", 0},
	{"/hostname", "the same", 0},
	{"/resolv.conf", "the same", 0},
	{"/lo/images/", "it is checked when it is served", 0},
	{"/lo/journal/", "the CO has these records, or the mark is in the other sector; what is missing is counted", 0},
	{"/lo/data/counts/", "the same", 0},
	{"/lo/sessions/reserve", "it only takes room: what is in it says nothing", 0},
	{"/lo/sessions/durable", "the mark is in the other sector, too", 0},
	{"/lo/down/positions", "behind its header it has no record here, only the mark that says so", 32},
	{"/lo/retained/messages.log", "the same", 32},
	{"/identity/refused", "it is for a person, who reads it with colony doctor; nothing is done by it", 0},
}

// superseded reports whether a file is of the log of sessions and comes before its newest checkpoint, from which
// on a start reads: it stays for the case that this one is damaged.
func superseded(path string) bool {
	dir, name := filepath.Split(path)
	_, number, ok := strings.Cut(name, "-")
	if !ok || !strings.HasSuffix(dir, "/sessions/") {
		return false
	}
	newest, err := filepath.Glob(dir + "checkpoint-????????")
	return err == nil && len(newest) > 0 && number < strings.TrimPrefix(slices.Max(newest), dir+"checkpoint-")
}

// tolerated reports whether the damage need not be reported at the start.
func (d damage) tolerated() bool {
	return slices.ContainsFunc(tolerated, func(file tolerance) bool {
		return strings.Contains(d.path, file.part) && d.at >= file.from
	})
}

// counted compares what the site acknowledged with what the CO has, and with the losses that
// were reported to the CO since an event.
func (r *rot) counted(mark int64) {
	r.t.Helper()
	missing := r.missing()
	fresh := missing - r.lost
	r.lost = missing
	if fresh <= 0 {
		return
	}
	said := r.texts("select message from events where id > $1 and kind in ('data_lost', 'journal_gap') and message like '%counts%'", mark)
	var reported int64
	for _, text := range said {
		if strings.Contains(text, "began a new") { // the number of its records is unknown
			return
		}
		for _, word := range strings.Fields(text) {
			if n, err := strconv.ParseInt(word, 10, 64); err == nil {
				reported += n
				break
			}
		}
	}
	if reported < fresh {
		r.t.Errorf("%d acknowledged messages are missing, %d were reported to the CO: %q", fresh, reported, said)
	}
}

// change deploys another parameter: what was damaged does not keep later changes away.
func (r *rot) change() {
	r.t.Helper()
	r.addressee = fmt.Sprintf("World %d", r.published)
	r.must("deploy", "hello@1.0.0", "--site", site, "--set", fmt.Sprintf("port=%d", r.port), "--set", "addressee="+r.addressee)
	r.settle()
	r.boxes = r.running()
}

// finish changes and removes what was kept all the time.
func (r *rot) finish() {
	r.t.Helper()
	r.change()
	r.must("deployment", "delete", site+"/hello", "--wait")
	r.must("deployment", "delete", site+"/keeper", "--wait")
	if left, err := shims.Find(r.daemon.Socket, r.engine.Namespace); err != nil || len(left) != 0 {
		r.t.Errorf("after the removal of both deployments there are %+v, %v", left, err)
	}
	if b, err := os.ReadFile(r.marker); err != nil || string(b) != "keep me" {
		r.t.Errorf("the volume, which outlives its deployment, holds %q, %v", b, err)
	}
}

// aside lists what a tier has set aside below a directory.
func aside(dir string) (found []string) {
	_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && strings.Contains(e.Name(), ".damaged-") {
			found = append(found, path)
		}
		return nil
	})
	return found
}

func logged(t testing.TB, p *tier) string {
	t.Helper()
	b, err := os.ReadFile(p.Log())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// noticed reports whether the damaged file was set aside, or is named by a warning among
// lines of a log; a segment by its journal.
func (d damage) noticed(was, now []string, lines string) bool {
	for _, path := range now {
		if !slices.Contains(was, path) && strings.HasPrefix(path, d.path) {
			return true
		}
	}
	name := d.path
	if strings.HasSuffix(name, ".seg") {
		name = filepath.Dir(name)
	}
	for line := range strings.Lines(lines) {
		if strings.Contains(line, name) && (strings.Contains(line, `"level":"WARN"`) || strings.Contains(line, `"level":"ERROR"`)) {
			return true
		}
	}
	return false
}
