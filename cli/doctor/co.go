package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co"
	identityapi "github.com/colonyfleet/colony/co/api/identity"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/storage/objects"
	"github.com/colonyfleet/colony/internal/doctor"
	"github.com/colonyfleet/colony/internal/doctor/host"
	"github.com/colonyfleet/colony/internal/pgdb"
	"github.com/colonyfleet/colony/protocol"
)

// leastServer is the oldest PostgreSQL that still gets repairs, as a version number.
const leastServer = 140_000

// database connects to PostgreSQL.
func database(url string) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		number, text, err := pgdb.ServerVersion(ctx, url)
		if err != nil {
			return []doctor.Finding{doctor.Failf("check that PostgreSQL runs, databaseURL in the configuration, and pg_hba.conf of the server", "%v", err)}
		}
		return []doctor.Finding{judgeServer(number, text)}
	}
}

func judgeServer(number int, text string) doctor.Finding {
	if number < leastServer {
		return doctor.Warnf("upgrade the server: this release gets no repairs any more", "PostgreSQL %s", text)
	}
	return doctor.Okf("PostgreSQL %s answers", text)
}

// deployments asks the remote of the deployments repo for its branch.
func deployments(o co.GitOptions) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		version, err := runGit(ctx, nil, "version")
		if err != nil {
			return []doctor.Finding{doctor.Failf("install git", "git cannot be run: %v", err)}
		}
		out := []doctor.Finding{doctor.Okf("%s", strings.TrimSpace(version))}
		if o.Remote == "" {
			return out // the check of the configuration reports that
		}
		branch := o.Branch
		if branch == "" {
			branch = "main"
		}
		args := []string{"ls-remote", "--heads", "--", o.Remote, branch}
		if o.CredentialFile != "" {
			args = append([]string{"-c", "credential.helper=store --file=" + strconv.Quote(o.CredentialFile)}, args...)
		}
		var env []string
		if o.SSHCommand != "" {
			env = append(env, "GIT_SSH_COMMAND="+o.SSHCommand)
		}
		heads, err := runGit(ctx, env, args...)
		switch {
		case err != nil:
			return append(out, doctor.Failf("check git.remote, git.sshCommand and git.credentialFile in the configuration, and the rights of the key", "the deployments repo cannot be read: %v", err))
		case strings.TrimSpace(heads) == "":
			return append(out, doctor.Warnf("push a first commit, or set git.branch; the CO makes the branch with its first change", "the deployments repo has no branch %s", branch))
		}
		return append(out, doctor.Okf("the deployments repo has the branch %s", branch))
	}
}

// objectStorage writes to the object storage of the registry, if it is in one.
func objectStorage(at objects.Location) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding {
		if !at.Given() || at.Validate("registryObjects") != nil {
			return nil // in a directory; or the check of the configuration reports the fault
		}
		if err := objects.Check(at); err != nil {
			return []doctor.Finding{doctor.Failf("check registryObjects in the configuration, and the rights of the keys in its credentialFile", "the registry cannot be kept: %v", err)}
		}
		return []doctor.Finding{doctor.Okf("the bucket %s of %s can be read and written", at.Bucket, at.Endpoint)}
	}
}

// runGit runs git without asking anybody anything.
func runGit(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Env = append(append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true"), env...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(diag.String()); text != "" {
			return "", fmt.Errorf("%w: %s", err, text)
		}
		return "", err
	}
	return out.String(), nil
}

// ask gets what a CO on this machine has at a path of its HTTP address.
func ask(ctx context.Context, o co.Options, path string) ([]byte, error) {
	target := host.URL(o.HTTP, path)
	if o.Access.Certificate == "" {
		return host.Get(ctx, target)
	}
	client, err := host.Pinned(o.Access.Certificate)
	if err != nil {
		return nil, err
	}
	return host.GetBy(ctx, client, "https"+strings.TrimPrefix(target, "http"))
}

// soon is how long before its end the certificate of the API should be another one.
const soon = 14 * 24 * time.Hour

// certificate looks at what the API is served with.
func certificate(o co.Options) func(context.Context) []doctor.Finding {
	return func(context.Context) []doctor.Finding { return []doctor.Finding{judgeCertificate(o, time.Now())} }
}

func judgeCertificate(o co.Options, now time.Time) doctor.Finding {
	a := o.Access
	if a.Certificate == "" {
		if at, err := netip.ParseAddrPort(o.HTTP); a.Required && (err != nil || !at.Addr().IsLoopback()) {
			return doctor.Warnf("set access.certificate and access.key, or let http be a loopback address behind a proxy with TLS", "the API at %s has no TLS: tokens go over the network in clear", o.HTTP)
		}
		return doctor.Okf("the API is served without TLS")
	}
	pair, err := tls.LoadX509KeyPair(a.Certificate, a.Key)
	if err != nil {
		return doctor.Failf("let access.certificate name the chain in PEM, its leaf first, and access.key its key", "the certificate of the API cannot be used: %v", err)
	}
	names := strings.Join(pair.Leaf.DNSNames, ", ")
	for _, ip := range pair.Leaf.IPAddresses {
		names = strings.TrimPrefix(names+", "+ip.String(), ", ")
	}
	end := pair.Leaf.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case now.After(pair.Leaf.NotAfter):
		return doctor.Failf("renew it: the CO reads the new files by itself", "the certificate of the API (%s) ended at %s", names, end)
	case now.Add(soon).After(pair.Leaf.NotAfter):
		return doctor.Warnf("renew it: the CO reads the new files by itself", "the certificate of the API (%s) ends at %s", names, end)
	}
	return doctor.Okf("the certificate of the API (%s) ends at %s", names, end)
}

// listed asks a running CO that wants certificates for a list of sites, and has it judged.
func listed[T any](o co.Options, running func(context.Context) bool, path string, judge func(identityapi.Page[T]) doctor.Finding) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		if o.Identity.Enrol == "" {
			return []doctor.Finding{doctor.Okf("not asked: no site needs a certificate")}
		}
		if !running(ctx) {
			return []doctor.Finding{doctor.Okf("not asked: the CO does not run")}
		}
		var list identityapi.Page[T]
		body, err := ask(ctx, o, path)
		if err == nil {
			err = json.Unmarshal(body, &list)
		}
		if errors.Is(err, host.ErrUnauthorized) {
			return []doctor.Finding{doctor.Okf("not asked: the API wants a token; with one, GET %s shows it", path)}
		}
		if err != nil {
			return []doctor.Finding{doctor.Warnf("look at the log of the CO", "the CO does not answer %s: %v", path, err)}
		}
		return []doctor.Finding{judge(list)}
	}
}

// judgePending judges the sites that do not go by their lists of revoked keys.
func judgePending(list identityapi.Page[fleet.PendingRevocation]) doctor.Finding {
	if list.Total == 0 {
		return doctor.Okf("every site goes by its list of revoked keys")
	}
	var sites []string
	for _, p := range list.Items {
		text := fmt.Sprintf("%s (list %d, since %s", p.Site, p.Number, p.Made.UTC().Format(time.RFC3339))
		if !p.Online {
			text += ", offline"
		}
		sites = append(sites, text+")")
	}
	return doctor.Warnf("a revoked machine is let in at these sites until they hear of it: connect those that are offline; of the others the events say why (colony events --kind revocations_refused)",
		"%d sites do not go by their list of revoked keys yet: %s", list.Total, names(sites))
}

// judgeWaiting judges the nodes that wait to be approved.
func judgeWaiting(list identityapi.Page[fleet.PendingNode]) doctor.Finding {
	if list.Total == 0 {
		return doctor.Okf("no node waits to be approved")
	}
	var nodes []string
	for _, p := range list.Items {
		nodes = append(nodes, fmt.Sprintf("%s/%s (key %.16s)", p.Site, p.Node, p.Key))
	}
	return doctor.Warnf("compare the key with what colony doctor en says on the gateway, and then colony node approve SITE/NODE KEY, or reject",
		"%d nodes without a join token wait to be approved: %s", list.Total, names(nodes))
}

func judgeUnenrolled(list identityapi.Page[fleet.Unenrolled]) doctor.Finding {
	if list.Total == 0 {
		return doctor.Okf("every site is enrolled")
	}
	var sites []protocol.SiteID
	for _, s := range list.Items {
		sites = append(sites, s.Site)
	}
	return doctor.Warnf("give them join tokens: colony site adopt SITE; or remove those that do not exist: colony site remove SITE", "%d sites are not enrolled, and are not let in without a certificate: %s", list.Total, names(sites))
}

// checkOf is the check that says what is wrong with a part of a CO that is not ready.
var checkOf = map[string]string{"postgres": "database", "deployments repo": "git", "disk": "disk"}

// parts asks a running CO whether what it needs works.
func parts(o co.Options, running func(context.Context) bool) func(context.Context) []doctor.Finding {
	return func(ctx context.Context) []doctor.Finding {
		if !running(ctx) {
			return []doctor.Finding{doctor.Okf("not asked: the CO does not run")}
		}
		body, err := ask(ctx, o, "/readyz")
		if err == nil {
			return []doctor.Finding{doctor.Okf("the CO runs and is ready")}
		}
		var out []doctor.Finding
		for line := range strings.Lines(string(body)) {
			line = strings.TrimSpace(line)
			part, _, _ := strings.Cut(line, ":")
			fix := "look at the log of the CO"
			if check := checkOf[part]; check != "" {
				fix = "see the check " + check
			}
			out = append(out, doctor.Failf(fix, "the CO runs and is not ready: %s", line))
		}
		if len(out) == 0 {
			out = append(out, doctor.Failf("look at the log of the CO", "the CO does not answer: %v", err))
		}
		return out
	}
}
