package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/colonyfleet/colony/cli/doctor/node"
	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/co/registry/storage/objects"
	"github.com/colonyfleet/colony/co/repo/git"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/containerdtest"
	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/internal/s3test"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/tlstest"
	"github.com/colonyfleet/colony/lo"
	"github.com/jackc/pgx/v5"
)

// A fault is something that really is broken, and what repairs it.
type fault struct {
	name   string
	check  string
	status doctor.Status
	says   string // the finding, among others
	fix    string // the text of the fix, among others
	breaks func()
	// repair does what the fix says. Nil: the fix is a command, which is run as it stands.
	repair func()
}

// unbroken are the checks of what a test cannot break: package host judges them with values
// that its tests choose.
var unbroken = map[string]string{
	"clock":  "the clock of the machine is that of everybody else's tests",
	"kernel": "it is the machine's",
}

// patience bounds the wait for a tier that notices what has changed around it.
const patience = time.Minute

// play breaks one thing after another. Each time the check says what is broken and what to do,
// and does not any more when exactly that was done. Every check of the tier must be among
// them.
func play(t *testing.T, checks func() []doctor.Check, faults []fault) {
	t.Helper()
	played := map[string]bool{}
	for _, f := range faults {
		played[f.check] = true
		found := func() (all []doctor.Finding, one *doctor.Finding) {
			for _, c := range checks() {
				if c.Name == f.check {
					all = c.Run(t.Context())
				}
			}
			for i := range all {
				if strings.Contains(all[i].Message, f.says) && all[i].Status == f.status {
					one = &all[i]
				}
			}
			return all, one
		}
		wait := func(what string, broken bool) (one *doctor.Finding) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for {
				all, one := found()
				if (one != nil) == broken {
					return one
				}
				select {
				case <-ctx.Done():
					t.Fatalf("%s: %s: %s %q is found: %t; the check %s says %+v", f.name, what, f.status, f.says, one != nil, f.check, all)
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
		wait("before", false)
		f.breaks()
		one := wait("when it is broken", true)
		if !strings.Contains(one.Fix, f.fix) {
			t.Errorf("%s: the fix is %q, want one that says %q", f.name, one.Fix, f.fix)
		}
		if f.repair != nil {
			f.repair()
		} else if out, err := exec.CommandContext(t.Context(), "sh", "-c", one.Fix).CombinedOutput(); err != nil {
			t.Fatalf("%s: the fix %q: %v: %s", f.name, one.Fix, err, out)
		}
		wait("after "+one.Fix, false)
	}
	for _, c := range checks() {
		if !played[c.Name] && unbroken[c.Name] == "" {
			t.Errorf("nothing breaks what the check %s looks at", c.Name)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// call asks the API of a CO for something without details.
func call(t *testing.T, method, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("{}"))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	if must(t, resp.Body.Close()); resp.StatusCode >= http.StatusMultipleChoices {
		t.Fatalf("%s %s: %s", method, url, resp.Status)
	}
}

// small mounts a small file system of its own and returns where.
func small(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=100m,nr_inodes=4000,mode=0700"))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// shared are the faults that each tier can have. address is that of a port of the tier, which
// does not run; valid is a key of its configuration.
func shared(t *testing.T, dir, key string, valid *string, address func() string) []fault {
	remount := func(flags uintptr) func() {
		return func() { must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|flags, "")) }
	}
	large, many := filepath.Join(dir, "large"), filepath.Join(dir, "many")
	was := *valid
	var other net.Listener
	return []fault{
		{"a key that is wrong", "configuration", doctor.Fail, key, "correct the key", func() { *valid = "nowhere" }, func() { *valid = was }},
		{"a disk that is read-only", "disk", doctor.Fail, "cannot be written", "mount it writable", remount(unix.MS_RDONLY), remount(0)},
		{"a disk that is full", "disk", doctor.Fail, "at least 64.0 MiB are needed", "free some space", func() {
			must(t, os.WriteFile(large, make([]byte, 60<<20), 0o600))
		}, func() { must(t, os.Remove(large)) }},
		{"a disk without inodes", "disk", doctor.Fail, "each file needs one", "remove small files", func() {
			must(t, os.Mkdir(many, 0o700))
			for n := range 3500 {
				must(t, os.Symlink("x", filepath.Join(many, fmt.Sprint(n))))
			}
		}, func() { must(t, os.RemoveAll(many)) }},
		{"a directory that all can write to", "permissions", doctor.Fail, "can be written by others", "chmod go-w " + dir, func() { must(t, os.Chmod(dir, 0o777)) }, nil},
		{"a port that another program has", "ports", doctor.Fail, "in use by another program", "end that", func() {
			var err error
			other, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", address())
			must(t, err)
		}, func() { must(t, other.Close()) }},
	}
}

// damage flips a byte of a file of state while the tier is stopped, which notices it when it
// starts.
func damage(t *testing.T, dir, file string, stop, start func()) fault {
	set := func() []string {
		found, err := filepath.Glob(filepath.Join(dir, file+".damaged-*"))
		must(t, err)
		return found
	}
	return fault{"a file that is damaged", "damage", doctor.Warn, filepath.Base(file) + ".damaged-", "remove the files", func() {
		stop()
		path := filepath.Join(dir, file)
		b, err := os.ReadFile(path)
		must(t, err)
		b[len(b)/2] ^= 1
		must(t, os.WriteFile(path, b, 0o600))
		start()
	}, func() {
		for _, path := range set() {
			must(t, os.Remove(path))
		}
	}}
}

// unproved is a machine that is to be enrolled and has no token. Something listens at address.
func unproved(t *testing.T, enrol *[]string, address, dir, command string) fault {
	return fault{"a machine without a token", "identity", doctor.Fail, "no join token", command, func() { *enrol = []string{address} }, func() {
		key, err := identity.NewKey()
		must(t, err)
		root, err := identity.NewRoot(key, time.Now())
		must(t, err)
		must(t, os.MkdirAll(dir, 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "token"), []byte(identity.NewToken(root.Root()).String()), 0o600))
	}}
}

// unreachable is an address of enrolment without a listener. Its repair ends the enrolment.
func unreachable(t *testing.T, enrol *[]string) fault {
	return fault{"an enrolment that is away", "enrolment", doctor.Fail, "cannot be reached", ".enrol in the configuration", func() { *enrol = []string{freeport.Addr(t)} }, func() { *enrol = nil }}
}

var quiet = slog.New(slog.DiscardHandler)

// TestRepairsOfCO breaks a CO, its machine, its database and its repo.
func TestRepairsOfCO(t *testing.T) {
	dir, work := small(t), t.TempDir()
	database := pgtest.NewOwn(t)
	remote, secret := filepath.Join(work, "remote.git"), filepath.Join(work, "credentials")
	must(t, os.WriteFile(secret, nil, 0o600))
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Logger = dir, database.URL(), freeport.Addr(t), freeport.Addr(t), quiet
	o.Git.Remote, o.Git.CredentialFile, o.Git.Interval = remote, secret, 100*time.Millisecond
	o.Broker.URLs = nil
	must(t, git.InitBare(t.Context(), remote, "main"))
	path := os.Getenv("PATH")
	var broker net.Listener
	var storage *s3test.Server
	external := freeport.Addr(t)
	move := func(from, to string) func() { return func() { must(t, os.Rename(from, to)) } }
	faults := append(shared(t, dir, "http", &o.HTTP, func() string { return o.HTTP }), []fault{
		{"a fleet without its root", "identity", doctor.Fail, "the root of the fleet is missing", "only for a new fleet make one with colony ca init", func() {
			o.Identity.Enrol, o.Identity.MQTT = freeport.Addr(t), freeport.Addr(t)
		}, func() {
			files, err := store.Open(nil, store.Dir(dir))
			must(t, err)
			_, _, err = files.InitRoot(time.Now())
			must(t, err)
		}},
		{"a secret that all can read", "permissions", doctor.Warn, "can be read by others", "chmod 600 " + secret, func() { must(t, os.Chmod(secret, 0o644)) }, nil},
		{"a secret that is missing", "permissions", doctor.Fail, "no such file", "make the file", func() { must(t, os.Remove(secret)) }, func() { must(t, os.WriteFile(secret, nil, 0o600)) }},
		{"a database that is stopped", "database", doctor.Fail, "", "check that PostgreSQL runs", database.Stop, database.Start},
		{"git that is missing", "git", doctor.Fail, "git cannot be run", "install git", func() { t.Setenv("PATH", t.TempDir()) }, func() { t.Setenv("PATH", path) }},
		{"a repo that is away", "git", doctor.Fail, "cannot be read", "check git.remote", move(remote, remote+"x"), move(remote+"x", remote)},
		{"an external broker that is away", "broker", doctor.Fail, "cannot be reached", "check that it runs", func() { o.Broker.URLs = []string{"tcp://" + external} }, func() {
			var err error
			broker, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", external)
			must(t, err)
			t.Cleanup(func() { _ = broker.Close() })
		}},
		{
			"state that was set aside", "damage", doctor.Warn, "key.damaged-1", "remove the files", func() { must(t, os.WriteFile(filepath.Join(dir, "key.damaged-1"), nil, 0o600)) },
			func() { must(t, os.Remove(filepath.Join(dir, "key.damaged-1"))) },
		},
		{"a branch that is not there", "git", doctor.Warn, "has no branch other", "or set git.branch", func() { o.Git.Branch = "other" }, func() { o.Git.Branch = "main" }},
	}...)
	started := func(f fault) fault { // the first of those that need a CO that runs
		breaks := f.breaks
		f.breaks = func() {
			o.Broker.URLs = nil
			c, err := co.New(o)
			must(t, err)
			testpart.Start(t, c)
			breaks()
		}
		return f
	}
	faults = append(faults, started(fault{"a CO whose database stopped", "parts", doctor.Fail, "postgres", "see the check database", database.Stop, database.Start}),
		fault{"a CO whose repo is away", "parts", doctor.Fail, "deployments repo", "see the check git", move(remote, remote+"x"), move(remote+"x", remote)},
		fault{"a site whose LO has not come", "sites", doctor.Warn, "1 sites are not enrolled, and are not let in without a certificate: plant", "colony site remove", func() {
			call(t, http.MethodPost, "http://"+o.HTTP+"/api/v1/sites/plant/join-tokens")
		}, func() {
			call(t, http.MethodDelete, "http://"+o.HTTP+"/api/v1/sites/plant")
		}},
		fault{"a node that waits", "pending", doctor.Warn, "1 nodes without a join token wait to be approved: quay/g1 (key 0a0a)", "colony node approve SITE/NODE KEY", func() { // as the report of its LO does
			execute(t, o.DatabaseURL, `insert into pending_nodes (site, key, node) values ('quay', '0a0a', 'g1')`)
		}, func() {
			execute(t, o.DatabaseURL, `delete from pending_nodes`)
		}},
		fault{"a site that has not heard of a revocation", "revocations", doctor.Warn, "1 sites do not go by their list of revoked keys yet: quay (list 7,", "connect those that are offline", func() {
			execute(t, o.DatabaseURL, `insert into sites (id) values ('quay')`)
			execute(t, o.DatabaseURL, `insert into revocation_lists (site, number, digest) values ('quay', 7, '')`)
		}, func() { // as the report of its LO does
			execute(t, o.DatabaseURL, `update revocation_lists set adopted = number, adopted_at = now() where site = 'quay'`)
		}},
		fault{"a registry whose bucket is missing", "objects", doctor.Fail, `there is no bucket "registry": create it`, "check registryObjects", func() {
			storage = s3test.Start(t)
			o.RegistryObjects = objects.Location{Endpoint: storage.URL, Bucket: "registry", CredentialFile: storage.CredentialFile}
		}, func() { storage.Bucket("registry") }},
		fault{"a certificate of the API that has ended", "certificate", doctor.Fail, "(127.0.0.1) ended at", "renew it", func() {
			chain, key := filepath.Join(work, "api.pem"), filepath.Join(work, "api.key")
			tlstest.Write(t, chain, key, time.Now().Add(-time.Minute))
			o.Access.Certificate, o.Access.Key = chain, key
		}, func() {
			tlstest.Write(t, o.Access.Certificate, o.Access.Key, time.Now().Add(365*24*time.Hour))
		}})
	// The branch is there once the repo has a commit.
	at := slices.IndexFunc(faults, func(f fault) bool { return f.name == "a repo that is away" })
	faults = slices.Insert(faults, at, fault{"a repo without a commit", "git", doctor.Warn, "has no branch main", "push a first commit", func() { o.Git.Branch = "main" }, func() {
		clone := filepath.Join(work, "clone")
		out, err := exec.CommandContext(t.Context(), "sh", "-ec", `git clone -q "$0" "$1" && cd "$1" && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first && git push -q origin HEAD:main`, remote, clone).CombinedOutput()
		if err != nil {
			t.Fatalf("push: %v: %s", err, out)
		}
	}})
	o.Git.Branch = "elsewhere"
	play(t, func() []doctor.Check { return CO(o) }, faults)
}

// execute runs a statement in the database of a CO.
func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), sql)
	must(t, err)
}

// a CO that an LO can be connected to, at fixed addresses; start starts it.
func aCO(t *testing.T) (o co.Options, start func() (stop func())) {
	t.Helper()
	remote := filepath.Join(t.TempDir(), "remote.git")
	must(t, git.InitBare(t.Context(), remote, "main"))
	o = co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT, o.Git.Remote, o.Logger = t.TempDir(), pgtest.New(t), freeport.Addr(t), freeport.Addr(t), remote, quiet
	return o, func() func() {
		c, err := co.New(o)
		must(t, err)
		return testpart.Start(t, c)
	}
}

// TestRepairsOfLO breaks an LO, its machine and the CO above it.
func TestRepairsOfLO(t *testing.T) {
	dir := small(t)
	center, start := aCO(t)
	o := lo.DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP, o.Logger, o.JournalBytes, o.CacheBytes = "plant", dir, freeport.Addr(t), freeport.Addr(t), quiet, 8<<20, 8<<20
	o.CO.MQTT, o.CO.HTTP, o.CO.MaxBackoff = []string{"tcp://" + center.MQTT}, "http://"+center.HTTP, 100*time.Millisecond
	stop := start()
	var halt func()
	run := func() {
		l, err := lo.New(o)
		must(t, err)
		halt = testpart.Start(t, l)
	}
	stopCO := func() { stop() }
	startCO := func() { stop = start() }
	play(t, func() []doctor.Check { return LO(o) }, append(shared(t, dir, "http", &o.HTTP, func() string { return o.HTTP }), []fault{
		unproved(t, &o.CO.Enrol, center.MQTT, store.Dir(dir), "colony site add plant"),
		unreachable(t, &o.CO.Enrol),
		{"a CO that is stopped", "co", doctor.Fail, "the broker of the CO cannot be reached", "check that it runs", stopCO, startCO},
		{"a CO that is stopped", "api", doctor.Fail, "the API of the CO does not answer", "check that it runs", stopCO, startCO},
		{"an address that is no CO's", "registry", doctor.Fail, "the registry of the CO does not answer", "co.http in the configuration", func() { o.CO.HTTP = "http://" + center.MQTT }, func() { o.CO.HTTP = "http://" + center.HTTP }},
		{"an LO without its CO", "backlog", doctor.Warn, "not connected to the CO", "see the check co", func() { run(); stopCO() }, startCO},
		damage(t, dir, filepath.Join("state", "site.json"), func() { halt() }, run),
	}...))
}

// TestRepairsOfEN breaks an agent, its machine, its container engine and the LO above it.
func TestRepairsOfEN(t *testing.T) {
	dir := small(t)
	daemon := containerdtest.Start(t)
	above := lo.DefaultOptions()
	above.Site, above.StateDir, above.MQTT, above.HTTP, above.Logger = "plant", t.TempDir(), freeport.Addr(t), freeport.Addr(t), quiet
	above.CO.MQTT, above.CO.HTTP = []string{"tcp://" + freeport.Addr(t)}, "http://"+freeport.Addr(t)
	start := func() func() {
		l, err := lo.New(above)
		must(t, err)
		return testpart.Start(t, l)
	}
	stop := start()
	o := en.DefaultOptions()
	o.Site, o.Node, o.StateDir, o.HTTP, o.Logger = "plant", "gw-1", dir, freeport.Addr(t), quiet
	o.LO.MQTT, o.LO.KeepAlive = []string{"tcp://" + above.MQTT}, time.Second
	o.Engine.Address, o.Engine.StateDir, o.Engine.Mirror = daemon.Socket, filepath.Join(daemon.Dir, "engine"), "http://"+above.HTTP
	plugins := o.Engine.PluginDirs
	stopLO := func() { stop() }
	startLO := func() { stop = start() }
	var halt func()
	run := func() {
		e, err := en.New(o)
		must(t, err)
		halt = testpart.Start(t, e)
	}
	play(t, func() []doctor.Check { return node.Checks(o) }, append(shared(t, dir, "http", &o.HTTP, func() string { return o.HTTP }), []fault{
		unproved(t, &o.LO.Enrol, above.MQTT, store.Dir(dir), "colony node token plant"),
		unreachable(t, &o.LO.Enrol),
		{"a containerd that died", "engine", doctor.Fail, "the container engine does not answer", "start it", func() { daemon.Kill(t) }, func() { daemon.Restart(t) }},
		{"plugins that are missing", "plugins", doctor.Fail, "CNI plugins bridge, host-local, portmap are not in", "correct engine.pluginDirs", func() { o.Engine.PluginDirs = []string{dir} }, func() { o.Engine.PluginDirs = plugins }},
		{"an LO that is stopped", "lo", doctor.Fail, "the broker of the LO cannot be reached", "check that it runs", stopLO, startLO},
		{"an LO that is stopped", "images", doctor.Fail, "the image cache of the LO does not answer", "check that it runs", stopLO, startLO},
		{"an agent without its LO", "backlog", doctor.Warn, "not connected to the LO", "see the check lo", func() { run(); stopLO() }, startLO},
		damage(t, dir, "agent-id", func() { halt() }, run),
	}...))
}
