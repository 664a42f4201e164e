package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// volumes returns the volumes that outlived a deployment, as the CO shows them.
func (c *colony) volumes(deployment string) (names []string, err error) {
	var kept api.KeptVolumes
	if err := c.get("/sites/"+site+"/volumes?deployment="+deployment, &kept); err != nil {
		return nil, err
	}
	for _, v := range kept.Items {
		names = append(names, v.Volume)
	}
	return names, nil
}

// keepsVolumes waits until the volumes that outlived a deployment are these.
func (c *colony) keepsVolumes(deployment string, want ...string) {
	c.t.Helper()
	c.eventually(time.Minute, fmt.Sprintf("of %s the node keeps %v", deployment, want), func() error {
		got, err := c.volumes(deployment)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it keeps %v", got)
		}
		return err
	})
}

// keptVolumes removes a deployment whose volumes stay, then one of the volumes by name, and
// the other one with the deployment, which the deployments repo does not have any more.
func keptVolumes(t *testing.T, c *colony) {
	c.must("app", "import", "testdata/apps")
	c.pushComponent("keeper", "services:\n  keeper:\n    image: registry.colony/samples/hello:1.0.0\n    volumes: ['data:/data', 'logs:/logs']\nvolumes: {data: {}, logs: {}}\n")
	c.must("deploy", "keeper", "--site", site, "--wait", "--healthy-for", "1s")
	c.must("deployment", "delete", site+"/keeper", "--wait")
	c.keepsVolumes("keeper", "keeper_data", "keeper_logs")
	c.refused(3, []string{"keeps no volume"}, "volume", "purge", site+"/"+node, "keeper/none")
	c.must("volume", "purge", site+"/"+node, "keeper/keeper_data", "--wait")
	c.keepsVolumes("keeper", "keeper_logs")
	c.must("deployment", "delete", site+"/keeper", "--volumes")
	c.keepsVolumes("keeper")
	left, err := filepath.Glob(filepath.Join(c.dir, "en", "*", "*keeper*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if entries, _ := os.ReadDir(path); len(entries) > 0 {
			t.Errorf("%s is left, with %d entries", path, len(entries))
		}
	}
}

// newKey has a part make another key and enrol with it by a join token, as the documentation says
// for a machine whose key was revoked.
func (c *colony) newKey(part, token string) {
	c.t.Helper()
	c.signal(part, syscall.SIGSTOP) // it must not write while its files go
	dir := filepath.Join(c.dir, part, "identity")
	err := os.RemoveAll(dir)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.kill(part)
}

// joinToken makes a join token, and returns it without the words beside it.
func (c *colony) joinToken(args ...string) string {
	c.t.Helper()
	var out identityapi.JoinToken
	if err := json.Unmarshal([]byte(c.must(append(args, "-o", "json")...)), &out); err != nil {
		c.t.Fatal(err)
	}
	return out.Token
}

// nodeRemoved removes a node that hangs. When it comes back it is refused, since its key was
// revoked, and what it runs goes on; with another key it is a node once more.
func nodeRemoved(t *testing.T, c *colony) {
	sample, mark := c.samplePID(), c.mark()
	c.refused(4, []string{"is online"}, "node", "remove", site+"/"+node, "--force")
	c.signal("en", syscall.SIGSTOP)
	defer c.signal("en", syscall.SIGCONT)
	c.event(time.Minute, string(protocol.NodeOfflineEvent), mark)
	c.refused(4, []string{"in use", "hello"}, "node", "remove", site+"/"+node)
	log, err := os.ReadFile(filepath.Join(c.dir, "logs", "en.log"))
	if err != nil {
		t.Fatal(err)
	}
	before := len(log)
	c.must("node", "remove", site+"/"+node, "--force", "--wait")
	c.refused(3, []string{"no node"}, "node", "show", site+"/"+node)
	if d, err := c.deployment("hello"); err != nil || len(d.Nodes) != 0 {
		t.Errorf("the deployment of the removed node: %+v, %v", d, err)
	}
	c.signal("en", syscall.SIGCONT)
	c.eventually(time.Minute, "the node is refused", func() error {
		log, err := os.ReadFile(filepath.Join(c.dir, "logs", "en.log"))
		if err == nil && !strings.Contains(string(log[min(before, len(log)):]), "bad certificate") {
			err = errors.New("its log does not say so")
		}
		return err
	})
	c.greets("Hello, World! I am version 1.0.0.")
	c.newKey("en", c.joinToken("node", "token", site))
	c.event(time.Minute, fleet.NodeReturned, mark)
	c.installed("hello", "1.0.0")
	if now := c.samplePID(); now != sample {
		t.Errorf("the container was restarted: pid %s, was %s", now, sample)
	}
	if out := c.must("node", "show", site+"/"+node); !strings.Contains(out, "has connected again") {
		t.Errorf("colony node show says:\n%s", out)
	}
}

// appVersionRemoved removes a version that nothing runs any more, and is refused one that runs.
func appVersionRemoved(t *testing.T, c *colony) {
	c.must("app", "import", "testdata/apps")
	c.must("app", "show", "keeper@1.0.0")
	c.must("app", "remove", "keeper@1.0.0")
	c.refused(3, []string{"keeper"}, "app", "show", "keeper@1.0.0")
	c.refused(4, []string{"hello 1.0.0 is in use by " + site + "/hello"}, "app", "remove", "hello@1.0.0")
	c.must("app", "import", "testdata/apps")
	c.must("app", "show", "keeper@1.0.0")
}

// imageRemoved is refused what a deployment, a node or the catalog needs, by Colony's API and
// by that of the registry, and removes an archive once nothing names it any more.
func imageRemoved(t *testing.T, c *colony) {
	const hello, archive = "samples/hello:1.0.0", "samples/compose/keeper:1.0.0"
	c.must("app", "import", "testdata/apps")
	c.pushComponent("keeper", "services:\n  keeper:\n    image: registry.colony/samples/hello:1.0.0\n    volumes: ['data:/data', 'logs:/logs']\nvolumes: {data: {}, logs: {}}\n")
	c.must("deploy", "keeper", "--site", site, "--wait", "--healthy-for", "1s")
	users := []string{"deployment " + site + "/keeper", "node " + site + "/" + node, "application keeper@1.0.0", "application hello@1.0.0"}
	c.refused(4, append(users, hello+" is in use by"), "image", "remove", hello)
	c.refused(4, []string{archive + " is in use by", "deployment " + site + "/keeper"}, "image", "remove", archive)
	uses := c.must("image", "uses", hello)
	for _, user := range []string{site + "/keeper", site + "/" + node, "keeper@1.0.0"} {
		if !strings.Contains(uses, user) {
			t.Errorf("colony image uses %s does not name %s:\n%s", hello, user, uses)
		}
	}
	for ref, want := range map[string]int{hello: http.StatusForbidden, archive: http.StatusForbidden, "samples/hello:9": http.StatusNotFound} {
		repository, tag, _ := strings.Cut(ref, ":")
		if got := c.registryAnswers(http.MethodDelete, repository, tag); got != want {
			t.Errorf("DELETE %s of the registry: %d, want %d", ref, got, want)
		}
	}
	c.must("deployment", "delete", site+"/keeper", "--volumes", "--wait")
	c.refused(4, []string{"application keeper@1.0.0"}, "image", "remove", archive)
	c.must("app", "remove", "keeper@1.0.0")
	c.must("image", "remove", archive)
	if got := c.registryAnswers(http.MethodGet, "samples/compose/keeper", "1.0.0"); got != http.StatusNotFound {
		t.Errorf("the removed archive answers %d", got)
	}
	if list := c.must("image", "list", "samples/compose/keeper"); !strings.Contains(list, "removed") || strings.Contains(list, "1.0.0") {
		t.Errorf("colony image list says:\n%s", list)
	}
	c.refused(3, []string{archive}, "image", "remove", archive)
	c.must("app", "import", "testdata/apps")
}

// registryAnswers asks the CO's registry for a manifest, and returns the status of its answer.
func (c *colony) registryAnswers(method, repository, ref string) int {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.http+"/v2/"+repository+"/manifests/"+ref, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// siteRemoved removes a site whose LO hangs, with its deployments. When it comes back it is a
// site once more, what runs there goes on, and it can be removed by its name.
func siteRemoved(t *testing.T, c *colony) {
	c.must("deploy", "hello@1.0.0", "--site", site, "--set", fmt.Sprintf("port=%d", c.port), "--wait", "--healthy-for", "1s")
	sample, mark := c.samplePID(), c.mark()
	c.refused(4, []string{"is online"}, "site", "remove", site, "--force")
	c.signal("lo", syscall.SIGSTOP)
	defer c.signal("lo", syscall.SIGCONT)
	c.event(time.Minute, fleet.SiteOffline, mark)
	c.refused(4, []string{"in use", "hello"}, "site", "remove", site)
	c.must("site", "remove", site, "--force", "--wait")
	c.refused(3, []string{"site"}, "site", "show", site)
	c.refused(3, []string{"site"}, "deployment", "show", site+"/hello")
	c.signal("lo", syscall.SIGCONT)
	c.eventually(time.Minute, "the LO is refused by its key", func() error {
		resp, err := http.Get("http://" + c.http + "/metrics")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		metrics, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(metrics), `colony_co_enrolments_refused_total{code="revoked"}`) {
			err = errors.New("no refusal is counted")
		}
		return err
	})
	c.newKey("lo", c.joinToken("site", "add", site))
	c.newKey("en", c.joinToken("node", "token", site))
	c.eventually(2*time.Minute, "the site is back, and holds what it ran", func() error {
		d, err := c.deployment("hello")
		if err == nil && (len(d.Nodes) != 1 || d.Nodes[0].AppVersion != "1.0.0" || !d.SiteOnline) {
			err = fmt.Errorf("the deployment is %+v", d)
		}
		return err
	})
	c.greets("Hello, World! I am version 1.0.0.")
	if now := c.samplePID(); now != sample {
		t.Errorf("the container was restarted: pid %s, was %s", now, sample)
	}
	c.must("deployment", "delete", site+"/hello", "--wait")
	if got, err := c.greeting(); err == nil {
		t.Errorf("the sample still answers: %s", got)
	}
}
