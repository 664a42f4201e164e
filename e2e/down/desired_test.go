package down

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/db"
	fleetdb "github.com/colonyfleet/colony/co/db/fleet"
	cofleet "github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/impair"
	"github.com/colonyfleet/colony/lo/desired"
	"github.com/colonyfleet/colony/protocol"
)

// call is a request to the CO's API.
func (f *fleet) call(method, path string, body, out any) {
	f.t.Helper()
	j, err := json.Marshal(body)
	if err != nil {
		f.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(f.t.Context(), method, "http://"+f.coHTTP+path, bytes.NewReader(j))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // so that no connection outlives the test
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		f.t.Fatalf("%s %s: %s: %s %v", method, path, resp.Status, answer, err)
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			f.t.Fatal(err)
		}
	}
}

// importSample makes the sample application known.
func (f *fleet) importSample() {
	f.t.Helper()
	reg := ociclient.New(ociclient.Options{Hosts: map[string]string{"registry.colony": f.coHTTP}})
	defer reg.Close()
	if _, err := reg.PushImage(f.t.Context(), "registry.colony/samples/hello:1.0.0", image.Image{
		Entrypoint: []string{"/app"}, Files: map[string]archive.File{"/app": {Mode: 0o755, Content: []byte("program")}},
	}); err != nil {
		f.t.Fatal(err)
	}
	tgz, err := archive.Build("hello", os.DirFS("../../examples/components/hello-1.0.0"))
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := reg.PushArchive(f.t.Context(), "oci://registry.colony/samples/compose/hello", "1.0.0", tgz); err != nil {
		f.t.Fatal(err)
	}
	source, err := filepath.Abs("../../examples/registry")
	if err != nil {
		f.t.Fatal(err)
	}
	f.call(http.MethodPost, "/api/v1/apps", map[string]string{"source": source}, nil)
}

func (f *fleet) site() (s cofleet.Site) {
	f.t.Helper()
	f.call(http.MethodGet, "/api/v1/sites/plant", nil, &s)
	return s
}

// adopted waits until the site has what the CO wants of it, which is this many
// deployments.
func (f *fleet) adopted(deployments int) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("the site has %d deployments", deployments), func() bool {
		s := f.site()
		return s.Deployments == deployments && s.Generation > 0 && s.Adopted == s.Generation
	})
}

// TestReconnectIsSmall measures what a site with 50 deployments is sent when its
// link returns: not what it holds already.
func TestReconnectIsSmall(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.importSample()
	const n = 50
	for i := range n {
		f.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0", "name": fmt.Sprintf("hello-%02d", i)}, nil)
	}
	f.adopted(n)
	db, err := db.Open(t.Context(), f.db, db.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	whole, err := fleetdb.New(db).LastDesired(t.Context(), "plant")
	if err != nil {
		t.Fatal(err)
	}
	size := len(protocol.Marshal(&whole))

	down := f.reconnect()
	t.Logf("the state of %d deployments has %d bytes; a reconnect takes %d bytes down", n, size, down)
	if down > 2000 || size < 10*down {
		t.Errorf("a reconnect takes %d bytes down, for a state of %d that the site holds", down, size)
	}
	// One deployment more is what is new in the list, and one specification.
	mqtt, http1 := f.mqtt.Stats().Down.Delivered, f.http.Stats().Down.Delivered
	f.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0", "name": "one-more"}, nil)
	f.adopted(n + 1)
	took := f.mqtt.Stats().Down.Delivered + f.http.Stats().Down.Delivered - mqtt - http1
	t.Logf("one deployment more takes %d bytes down", took)
	if took > uint64(size)/10 {
		t.Errorf("one deployment more takes %d bytes down, the whole state has %d", took, size)
	}
}

// reconnect breaks the link and returns how many bytes go down once it is back.
func (f *fleet) reconnect() int {
	f.t.Helper()
	before := f.mqtt.Stats()
	f.mqtt.Reset()
	eventually(f.t, "the site has connected again", func() bool { return f.mqtt.Stats().Accepted > before.Accepted && f.site().Online })
	// Until nothing comes for a while: the link is as fast as this machine.
	last, since := f.mqtt.Stats().Down.Delivered, time.Now()
	eventually(f.t, "the link is quiet", func() bool {
		if now := f.mqtt.Stats().Down.Delivered; now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 700*time.Millisecond
	})
	return int(last - before.Down.Delivered)
}

// TestDesiredOverAShortLink brings a state of 20 deployments over a slow link that is
// reset again and again before all of it is through.
func TestDesiredOverAShortLink(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.importSample()
	f.adopted(0)
	f.cut()
	const n = 20
	for i := range n {
		f.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0", "name": fmt.Sprintf("hello-%02d", i)}, nil)
	}
	slow := impair.Profile{Rate: 4_000, Delay: 20 * time.Millisecond}
	done := make(chan struct{})
	resets := make(chan int)
	go func() {
		count := 0
		for up := true; ; up = !up {
			if up {
				f.mqtt.Set(slow)
				f.http.Set(slow)
			} else {
				f.cut()
				count++
			}
			wait := 3 * time.Second
			if !up {
				wait = 300 * time.Millisecond
			}
			select {
			case <-done:
				resets <- count
				return
			case <-time.After(wait):
			}
		}
	}()
	f.adopted(n)
	close(done)
	got := f.http.Stats().Down
	t.Logf("%d deployments over a link of 4 kB/s that was up for 3 s at a time: cut %d times, %d bytes", n, <-resets, got.Delivered)
}

// TestRemovedDuringAnOutage removes what a site runs while the CO, which would say so,
// is away: what the brokers had retained before does not come back.
func TestRemovedDuringAnOutage(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.importSample()
	f.call(http.MethodPost, "/api/v1/deployments", map[string]any{"site": "plant", "app": "hello", "version": "1.0.0"}, nil)
	f.adopted(1)
	before := f.site().Generation
	f.stopCO()
	f.commit(map[string][]byte{"deployments/plant/hello": nil})
	f.startCO()
	f.adopted(0)
	if got := f.site().Generation; got <= before {
		t.Errorf("generation %d after a removal, it was %d", got, before)
	}
	f.stopLO()
	f.startLO()
	f.stopLO()
	defer f.startLO()
	store, err := desired.Open(desired.Options{Disk: disk.OS, Dir: filepath.Join(f.dir, "lo", "desired"), Site: "plant", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m, held := store.Current()
	if !held || len(m.Deployments) != 0 {
		t.Errorf("after a restart of the LO: held %t, deployments %+v, want none", held, m.Deployments)
	}
	if len(m.Removals) != 1 || m.Removals[0].Deployment != "hello" {
		t.Errorf("after a restart of the LO: removals %+v, want that of hello", m.Removals)
	}
}
