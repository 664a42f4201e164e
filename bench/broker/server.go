package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/identity"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/freeport"
)

// A server is a broker that can be measured.
type server struct {
	name  string
	start func(ctx context.Context) (*process, error)
}

// A process is a running broker.
type process struct {
	addr    string
	cmd     *exec.Cmd
	dir     string // removed at the end, or ""
	flushes bool   // a message is on disk before its PUBACK
	// restart starts the broker anew with what it has stored.
	restart func(ctx context.Context) (*process, error)
	secure  string           // address of its TLS listener; "": it has none
	machine *identity.Holder // has the certificate that it lets in
}

// kill ends the broker as kill -9 does. What it has stored stays.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()         // says that it was killed
}

// terminate asks the broker to end, and waits until it has.
func (p *process) terminate() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	_ = p.cmd.Wait()                          // says how it ended
}

// fill lets no file of the broker grow any more, as on a full disk: writes to them fail. See main for the signal.
func (p *process) fill(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "prlimit", "--pid", strconv.Itoa(p.cmd.Process.Pid), "--fsize=100").CombinedOutput()
	if err != nil {
		return fmt.Errorf("prlimit: %w: %s", err, out)
	}
	return nil
}

func (p *process) stop() {
	p.kill()
	if p.dir != "" {
		_ = os.RemoveAll(p.dir) // a temporary directory
	}
}

// everybody may do everything: Mosquitto has no access control in this
// comparison either.
type everybody struct{}

func (everybody) Connect(i access.ConnectInfo) (access.Identity, error) {
	return access.Identity{Name: i.ClientID}, nil
}
func (everybody) MayPublish(access.Identity, string) bool   { return true }
func (everybody) MaySubscribe(access.Identity, string) bool { return true }

// serveColony is the process under test. It writes its address to out, and runs
// until in ends. Sessions are stored in dir.
func serveColony(dir string, in io.Reader, out io.Writer) error {
	ctx := context.Background()
	server, _, err := holders(dir)
	if err != nil {
		return err
	}
	b, err := broker.New(broker.Options{
		Name: "bench", Access: everybody{}, Logger: slog.New(slog.DiscardHandler),
		Listeners: []broker.Listener{
			{Name: "main", Network: broker.TCP, Address: "127.0.0.1:0"},
			{Name: "machines", Network: broker.TLS, Address: "127.0.0.1:0", TLS: server.ServerTLS()},
		},
		Sessions: broker.Sessions{Dir: filepath.Join(dir, "sessions"), Limits: sessions.Limits{PerAddress: 100_000, TotalMessages: 2_000_000, TotalBytes: 1 << 30}},
	})
	if err != nil {
		return err
	}
	if err := b.Start(ctx); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, b.Addr("main"), b.Addr("machines")); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, b.Stop(ctx))
}

// startColony starts a build of this program, "" for this one, as the broker under test.
func startColony(build string) func(ctx context.Context) (*process, error) {
	return func(ctx context.Context) (*process, error) {
		dir, err := os.MkdirTemp("", "bench-broker")
		if err != nil {
			return nil, err
		}
		return startColonyIn(ctx, build, dir)
	}
}

// startColonyIn starts it with the sessions of a directory, which it removes at the end.
func startColonyIn(ctx context.Context, build, dir string) (*process, error) {
	_, machine, err := holders(dir)
	if err != nil {
		return nil, err
	}
	self := build
	if self == "" {
		if self, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, self, "-serve", dir)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // held open as long as it shall run
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	p := &process{cmd: cmd, dir: dir, machine: machine, flushes: true, restart: func(ctx context.Context) (*process, error) { return startColonyIn(ctx, build, dir) }}
	if _, err = fmt.Fscanln(out, &p.addr, &p.secure); err != nil {
		p.stop()
		return nil, fmt.Errorf("read the broker's addresses: %w", err)
	}
	return p, nil
}

const mosquitto = "mosquitto"

// startMosquitto starts it with its defaults, or with queues that have no bound.
func startMosquitto(tuned bool) func(ctx context.Context) (*process, error) {
	return func(ctx context.Context) (*process, error) {
		path, err := exec.LookPath(mosquitto)
		if err != nil {
			if path, err = exec.LookPath("/usr/sbin/" + mosquitto); err != nil {
				return nil, errors.New("mosquitto is not installed: run scripts/setup --with-test-peers as root")
			}
		}
		p := &process{}
		if p.addr, err = freeport.Loopback(); err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(p.addr)
		if p.dir, err = os.MkdirTemp("", "bench-broker"); err != nil {
			return nil, err
		}
		conf := "listener " + port + " 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location " + p.dir + "/\nlog_dest none\nuser root\n"
		if err := p.serveSecure(&conf); err != nil {
			return nil, err
		}
		if tuned {
			conf += "max_queued_messages 0\nmax_queued_bytes 0\nset_tcp_nodelay true\n"
		}
		file := filepath.Join(p.dir, "mosquitto.conf")
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			return nil, err
		}
		p.restart = func(ctx context.Context) (*process, error) {
			restarted := &process{addr: p.addr, dir: p.dir, restart: p.restart, secure: p.secure, machine: p.machine}
			restarted.cmd = exec.CommandContext(ctx, path, "-c", file)
			restarted.cmd.Stderr = os.Stderr
			if err := restarted.cmd.Start(); err != nil {
				return nil, fmt.Errorf("start mosquitto: %w", err)
			}
			if err := reachable(ctx, restarted.addr); err != nil {
				restarted.kill()
				return nil, err
			}
			return restarted, nil
		}
		first, err := p.restart(ctx)
		if err != nil {
			_ = os.RemoveAll(p.dir) // a temporary directory
			return nil, err
		}
		p.cmd = first.cmd
		return p, nil
	}
}

// serveSecure adds a TLS listener to the configuration of a Mosquitto, with the certificates that Colony's broker has: it wants
// those of its clients, too.
func (p *process) serveSecure(conf *string) error {
	_, machine, err := holders(p.dir)
	if err != nil {
		return err
	}
	own, err := store.At(nil, filepath.Join(p.dir, "identity")).Load(store.Machine)
	if err != nil {
		return err
	}
	if p.secure, err = freeport.Loopback(); err != nil {
		return err
	}
	p.machine = machine
	_, port, _ := net.SplitHostPort(p.secure)
	files := map[string][]byte{"root.pem": store.EncodeCertificates([]*x509.Certificate{own.Root}), "chain.pem": store.EncodeCertificates(own.Chain)}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(p.dir, name), content, 0o600); err != nil {
			return err
		}
	}
	*conf += fmt.Sprintf("listener %s 127.0.0.1\ncafile %s\ncertfile %s\nkeyfile %s\nrequire_certificate true\ntls_version tlsv1.3\n", port,
		filepath.Join(p.dir, "root.pem"), filepath.Join(p.dir, "chain.pem"), filepath.Join(p.dir, "identity", store.Machine+".key"))
	return nil
}

// reachable waits until a connection succeeds.
func reachable(ctx context.Context, addr string) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	late := time.After(10 * time.Second)
	for {
		if c, err := net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
		select {
		case <-ticker.C:
		case <-late:
			return fmt.Errorf("%s does not listen", addr)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func mosquittoVersion(ctx context.Context) string {
	out, _ := exec.CommandContext(ctx, "/usr/sbin/"+mosquitto, "-h").Output() // it ends with status 3
	first, _, _ := strings.Cut(string(out), "\n")
	return first
}

// resident is the resident memory of the process in bytes.
func (p *process) resident() (float64, error) {
	f, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.Atoi(strings.Fields(string(f))[1])
	return float64(pages * os.Getpagesize()), err
}

// cpu is the processor time that the process has used. It counts in steps of 10 ms.
func (p *process) cpu() (time.Duration, error) {
	f, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(f[strings.LastIndexByte(string(f), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err
}
