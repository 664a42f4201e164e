// Package program runs the git binary: with a home and a configuration of its own, within
// bounds of time and output, and with errors that say what git printed.
package program

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
	"github.com/colonyfleet/colony/co/repo/git/bounded"
	"github.com/colonyfleet/colony/co/repo/git/progress"
	"github.com/colonyfleet/colony/internal/childproc"
	"github.com/colonyfleet/colony/internal/filelock"
	"github.com/colonyfleet/colony/protocol"
)

// maxOutput bounds what one call of git may print, in bytes.
const maxOutput = 256 << 20

// transferTimeout bounds a fetch that goes on, as the first one of a large repository.
const transferTimeout = time.Hour

// Git runs the git binary. Home replaces the user's home directory.
type Git struct {
	Home       string
	SSHCommand string
	Timeout    time.Duration
	// OnCall, unless nil, is called with each call that has ended.
	OnCall func(command string, took time.Duration, err error)
	// Foreign, if not "", is the only transport that may be used, to a remote that is
	// not the deployments repo: without this process's keys and agents, without
	// redirects, and with a bound on what is fetched.
	Foreign string
}

// maxForeignFile bounds a file that git writes for a foreign remote, which holds all
// that it fetches, in blocks of 512 bytes: 256 MiB.
const maxForeignFile = "524288"

// keylessSSH reads no configuration and offers no key of the user that runs it.
const keylessSSH = "ssh -F /dev/null -oBatchMode=yes -oConnectTimeout=15 -oPubkeyAuthentication=no -oGSSAPIAuthentication=no " +
	"-oHostbasedAuthentication=no -oIdentityAgent=none -oProxyCommand=none -oPermitLocalCommand=no"

// A Call is one run of git. Dir is the repository, where one is meant; Cache says
// that only that repository is concerned and no remote.
type Call struct {
	Cache bool
	Dir   string
	Args  []string
	env   []string
	Stdin []byte
	// Progress says that git prints how far it is: the timeout is then for each step, and transferTimeout for all.
	Progress bool
	// Held, unless nil, stays open for as long as git and what it starts runs.
	Held *os.File
}

// An Error is a run of git that failed.
type Error struct {
	Cache   bool // nothing but the cache can be the reason
	Command string
	Stderr  string
	Err     error
}

// Error returns what git printed, in one line.
func (e *Error) Error() string {
	if NoSpace(e) {
		return "git " + e.Command + ": the disk of the repository, or of the CO's copy of it, is full: free some space"
	}
	text := strings.Join(strings.Fields(address.Redact(e.Stderr)), " ")
	if len(text) > 500 {
		text = text[:500] + " …"
	}
	return fmt.Sprintf("git %s: %s", e.Command, cmp.Or(text, e.Err.Error()))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Printed reports whether err is of a git that printed one of these phrases.
func Printed(err error, phrases ...string) bool {
	ge, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	for _, p := range phrases {
		if strings.Contains(ge.Stderr, p) {
			return true
		}
	}
	return false
}

// Damaged reports whether err can be repaired by a new cache.
func Damaged(err error) bool {
	ge, ok := errors.AsType[*Error](err)
	return ok && ge.Cache && !NoSpace(err)
}

// NoSpace reports whether err is of a git that found its disk full.
func NoSpace(err error) bool {
	return Printed(err, "No space left on device", "Disk quota exceeded")
}

// inherited lists the variables of this process that git may see: what reaches the
// network, and nothing that changes what git does with a repository.
var inherited = []string{
	"PATH", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY",
}

func (g Git) configPath() string { return filepath.Join(g.Home, "gitconfig") }

// WriteConfig writes the whole configuration under which git runs. It is a file
// and not -c arguments, because git hands the latter not to the process that
// serves a remote on this machine.
func (g Git) WriteConfig(credentialFile string) error {
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
	if g.Foreign != "" {
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

func (g Git) environment() []string {
	ssh, protocols := g.SSHCommand, "file:git:http:https:ssh"
	switch {
	case g.Foreign != "":
		protocols, ssh = g.Foreign, cmp.Or(ssh, keylessSSH)
	case ssh == "":
		ssh = "ssh -oBatchMode=yes -oConnectTimeout=15"
	}
	env := []string{
		"HOME=" + g.Home,
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
		if v, ok := os.LookupEnv(name); ok && (g.Foreign == "" || name != "SSH_AUTH_SOCK") {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// Run runs git and returns what it printed. A failure is an *Error, or the
// context's error where that is the reason.
func (g Git) Run(ctx context.Context, c Call) ([]byte, error) {
	limited, watch, cancel := progress.New(ctx, g.Timeout, max(g.Timeout, transferTimeout))
	defer cancel()
	args := c.Args
	if c.Dir != "" {
		args = append([]string{"--git-dir=" + c.Dir}, args...)
	}
	program := "git"
	if g.Foreign != "" { // the shell only bounds what git may write
		program, args = "sh", append([]string{"-c", `ulimit -f "$0" && exec git "$@"`, maxForeignFile}, args...)
	}
	cmd := exec.CommandContext(limited, program, args...) //nolint:gosec // arguments are checked by the callers
	cmd.Dir = g.Home
	cmd.Env = append(g.environment(), c.env...)
	cmd.Stdin = bytes.NewReader(c.Stdin)
	if c.Held != nil {
		cmd.ExtraFiles = []*os.File{c.Held}
	}
	stdout, stderr := bounded.Buffer{Limit: maxOutput}, bounded.Buffer{Limit: 64 << 10, Cut: true}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if c.Progress {
		cmd.Stderr = &progress.Writer{To: &stderr, Moved: watch.Moved}
	}
	// A process group, so that the helpers of git end with it; and the kernel ends
	// it with this process, so that no git works in a cache that another process has acquired.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	began := time.Now()
	err := childproc.Run(cmd, syscall.SIGKILL)
	if g.OnCall != nil {
		g.OnCall(subcommand(c.Args), time.Since(began), err)
	}
	switch {
	case err == nil:
		return stdout.Bytes(), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case limited.Err() != nil:
		err = context.Cause(limited)
	}
	return nil, &Error{Cache: c.Cache, Command: subcommand(c.Args), Stderr: string(stderr.Bytes()), Err: err}
}

func subcommand(args []string) string {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			return a
		}
	}
	return ""
}

// LockDir locks the directory for this process. The kernel frees it when the
// process ends, however it ends.
func LockDir(dir string) (*filelock.Lock, error) {
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

// RemoveStale removes the lock files and the private indexes of a git that was
// killed. The caller holds the directory, so that none of another process is there.
func RemoveStale(dir string) error {
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
