package git

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/co/repo/address"
	"github.com/colonyfleet/colony/co/repo/git/progress"
	"github.com/colonyfleet/colony/internal/childproc"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/protocol"
)

// maxOutput bounds what one call of git may print, in bytes.
const maxOutput = 256 << 20

// git runs the git binary. home replaces the user's home directory.
type git struct {
	home       string
	sshCommand string
	timeout    time.Duration
	// foreign, if not "", is the only transport that may be used, to a remote that is
	// not the deployments repo: without this process's keys and agents, without
	// redirects, and with a bound on what is fetched.
	foreign string
}

// maxForeignFile bounds a file that git writes for a foreign remote, which holds all
// that it fetches, in blocks of 512 bytes: 256 MiB.
const maxForeignFile = "524288"

// keylessSSH reads no configuration and offers no key of the user that runs it.
const keylessSSH = "ssh -F /dev/null -oBatchMode=yes -oConnectTimeout=15 -oPubkeyAuthentication=no -oGSSAPIAuthentication=no " +
	"-oHostbasedAuthentication=no -oIdentityAgent=none -oProxyCommand=none -oPermitLocalCommand=no"

// A call is one run of git. dir is the repository, where one is meant; cache says
// that only that repository is concerned and no remote.
type call struct {
	cache bool
	dir   string
	args  []string
	env   []string
	stdin []byte
	// progress says that git prints how far it is: the timeout is then for each step, and transferTimeout for all.
	progress bool
	// held, unless nil, stays open for as long as git and what it starts runs.
	held *os.File
}

// A gitError is a run of git that failed.
type gitError struct {
	cache   bool // nothing but the cache can be the reason
	command string
	stderr  string
	err     error
}

// Error returns what git printed, in one line.
func (e *gitError) Error() string {
	text := strings.Join(strings.Fields(address.Redact(e.stderr)), " ")
	if len(text) > 500 {
		text = text[:500] + " …"
	}
	if text == "" {
		return fmt.Sprintf("git %s: %v", e.command, e.err)
	}
	return fmt.Sprintf("git %s: %s", e.command, text)
}

// Unwrap returns the cause.
func (e *gitError) Unwrap() error { return e.err }

// printed reports whether err is of a git that printed one of these phrases.
func printed(err error, phrases ...string) bool {
	ge, ok := errors.AsType[*gitError](err)
	if !ok {
		return false
	}
	for _, p := range phrases {
		if strings.Contains(ge.stderr, p) {
			return true
		}
	}
	return false
}

// damaged reports whether err can be repaired by a new cache.
func damaged(err error) bool {
	ge, ok := errors.AsType[*gitError](err)
	return ok && ge.cache && !noSpace(err)
}

func noSpace(err error) bool {
	return printed(err, "No space left on device", "Disk quota exceeded")
}

// inherited lists the variables of this process that git may see: what reaches the
// network, and nothing that changes what git does with a repository.
var inherited = []string{
	"PATH", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY",
}

func (g git) configPath() string { return filepath.Join(g.home, "gitconfig") }

// writeConfig writes the whole configuration under which git runs. It is a file
// and not -c arguments, because git hands the latter not to the process that
// serves a remote on this machine.
func (g git) writeConfig(credentialFile string) error {
	// The owner of a repository is not checked: the operator named it. Housekeeping
	// in the background would outlive a call, so it is off, and done by Repo.
	lines := []string{
		"[safe]", "directory = *",
		"[gc]", "auto = 0",
		"[maintenance]", "auto = false",
		"[receive]", "autogc = false",
		"[http]", "lowSpeedLimit = 100", "lowSpeedTime = 30",
		"[advice]", "pushNonFastForward = false",
	}
	if g.foreign != "" {
		lines = append(lines, "[http]", "followRedirects = false")
	}
	if credentialFile != "" {
		abs, err := filepath.Abs(credentialFile)
		if err != nil {
			return fmt.Errorf("credential file: %w", err)
		}
		helper := "store --file='" + strings.ReplaceAll(abs, "'", `'\''`) + "'"
		lines = append(lines, "[credential]", "helper = "+strconv.Quote(helper))
	}
	if err := os.WriteFile(g.configPath(), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return protocol.Errorf(protocol.Unavailable, "write git configuration: %w", err)
	}
	return nil
}

func (g git) environment() []string {
	ssh, protocols := g.sshCommand, "file:git:http:https:ssh"
	switch {
	case g.foreign != "":
		protocols, ssh = g.foreign, cmp.Or(ssh, keylessSSH)
	case ssh == "":
		ssh = "ssh -oBatchMode=yes -oConnectTimeout=15"
	}
	env := []string{
		"HOME=" + g.home,
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + g.configPath(),
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ASKPASS=",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_LITERAL_PATHSPECS=1",
		"GIT_ALLOW_PROTOCOL=" + protocols,
		"GIT_SSH_COMMAND=" + ssh,
	}
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok && (g.foreign == "" || name != "SSH_AUTH_SOCK") {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// run runs git and returns what it printed. A failure is a *gitError, or the
// context's error where that is the reason.
func (g git) run(ctx context.Context, c call) ([]byte, error) {
	limited, watch, cancel := progress.New(ctx, g.timeout, max(g.timeout, transferTimeout))
	defer cancel()
	args := c.args
	if c.dir != "" {
		args = append([]string{"--git-dir=" + c.dir}, args...)
	}
	program := "git"
	if g.foreign != "" { // the shell only bounds what git may write
		program, args = "sh", append([]string{"-c", `ulimit -f "$0" && exec git "$@"`, maxForeignFile}, args...)
	}
	cmd := exec.CommandContext(limited, program, args...) //nolint:gosec // arguments are checked by the callers
	cmd.Dir = g.home
	cmd.Env = append(g.environment(), c.env...)
	cmd.Stdin = bytes.NewReader(c.stdin)
	if c.held != nil {
		cmd.ExtraFiles = []*os.File{c.held}
	}
	stdout, stderr := limitedBuffer{limit: maxOutput}, limitedBuffer{limit: 64 << 10, cut: true}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if c.progress {
		cmd.Stderr = &progress.Writer{To: &stderr, Moved: watch.Moved}
	}
	// A process group, so that the helpers of git end with it; and the kernel ends
	// it with this process, so that no git works in a cache that another process has acquired.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := childproc.Run(cmd, syscall.SIGKILL)
	switch {
	case err == nil:
		return stdout.b, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case limited.Err() != nil:
		err = context.Cause(limited)
	}
	return nil, &gitError{cache: c.cache, command: subcommand(c.args), stderr: string(stderr.b), err: err}
}

func subcommand(args []string) string {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			return a
		}
	}
	return ""
}

// A limitedBuffer collects output up to a limit; past it, it fails the writer or,
// with cut, forgets the rest.
type limitedBuffer struct {
	b     []byte
	limit int
	cut   bool
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	room := l.limit - len(l.b)
	if len(p) <= room {
		l.b = append(l.b, p...)
		return len(p), nil
	}
	if !l.cut {
		return 0, fmt.Errorf("output of more than %d bytes", l.limit)
	}
	l.b = append(l.b, p[:room]...)
	return len(p), nil
}

// lockDir locks the directory for this process. The kernel frees it when the
// process ends, however it ends.
func lockDir(dir string) (*filelock.Lock, error) {
	lock, err := filelock.Acquire(filepath.Join(dir, "lock"))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, protocol.Errorf(protocol.Conflict, "git cache %s is in use by another process: stop it, or set another directory", dir)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.Unavailable, "lock git cache %s: %w", dir, err)
	}
	return lock, nil
}

// removeIfThere removes a file. A git that outlives the process that started it may have
// removed it at the same moment.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// removeStale removes the lock files and the private indexes of a git that was
// killed. The caller holds the directory, so that none of another process is there.
func removeStale(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() || d.Name() == "lock":
			return nil
		case strings.HasSuffix(d.Name(), ".lock"), strings.HasPrefix(d.Name(), "index-"), strings.HasPrefix(d.Name(), "tmp_"),
			strings.HasPrefix(d.Name(), "fast_import_crash_"):
			return removeIfThere(path)
		}
		return nil
	})
	if err != nil {
		return protocol.Errorf(protocol.Unavailable, "remove stale locks of the git cache: %w", err)
	}
	return nil
}
