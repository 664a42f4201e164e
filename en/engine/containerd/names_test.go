package containerd

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
)

// nodeDNS is a name server of the node on a loopback address of its own: it answers each
// question for an IPv4 address with 192.0.2.<last>, but for names below missing.
func nodeDNS(t *testing.T, address string, last byte) {
	t.Helper()
	p, err := net.ListenPacket("udp4", net.JoinHostPort(address, "53"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, from, err := p.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			m.Response = true
			if q := m.Questions[0]; strings.HasSuffix(q.Name.String(), "missing.") {
				m.RCode = dnsmessage.RCodeNameError
			} else if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, last}},
				}}
			}
			out, err := m.Pack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = p.WriteTo(out, from)
		}
	}()
	t.Cleanup(func() { _ = p.Close(); <-done })
}

// Programs that ask DNS themselves find the containers of the deployment there, and what
// the node's name servers know, whichever those are now.
func TestDNS(t *testing.T) {
	t.Parallel()
	nodeDNS(t, "127.77.1.1", 1)
	nodeDNS(t, "127.77.1.2", 2)
	node := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(node, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("nameserver 127.77.1.1\nsearch plant.example\n")
	r := setupWith(t, func(o *Options) { o.resolvConf = []string{node} })
	web, asker := r.container("serve", "53", "x"), r.container("wait")
	web.Spec.Aliases = []string{"Shop-Front"}
	r.run(t, asker)
	r.run(t, web) // it has port 53 of its network namespace for itself
	own := r.container("hang")
	own.Spec.DNS, own.Spec.DNSSearch, own.Spec.DNSOptions = []string{"127.77.1.2", "192.0.2.99"}, []string{"."}, []string{"ndots:2"}
	r.run(t, own)
	a, err := r.net.Get(marks.Key(web.ID))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(e *rig, c engine.Container, want string, args ...string) {
		t.Helper()
		res, err := e.Exec(t.Context(), c.ID, append([]string{"/toolbox", "dig"}, args...))
		if got := strings.TrimSpace(string(res.Output)); err != nil || got != want {
			t.Errorf("dig %q: %q (%v), want %q", args, got, err, want)
		}
	}
	ask(r, asker, "0 "+a.IP, "serve", "1")
	ask(r, asker, "0 "+a.IP, "SERVE.main", "1", "tcp")
	ask(r, asker, "0 "+a.IP, "shop-front", "1")
	ask(r, web, "0 "+a.IP, "serve", "1")
	ask(r, asker, "0", "serve", "28")
	ask(r, asker, "3", "missing", "1")
	ask(r, asker, "0 192.0.2.1", "example.org", "1")
	if got := r.output(t, asker, "cat", "/etc/resolv.conf"); got != "nameserver 127.0.0.11\nsearch plant.example\noptions ndots:0\n" {
		t.Errorf("resolv.conf:\n%s", got)
	}
	if got := r.output(t, own, "cat", "/etc/resolv.conf"); got != "nameserver 127.0.0.11\nnameserver 127.77.1.2\nnameserver 192.0.2.99\noptions ndots:2\n" {
		t.Errorf("resolv.conf of a container with its own name servers:\n%s", got)
	}

	// DHCP brings another name server.
	write("nameserver 127.77.1.2\n")
	if err := r.names.Follow(); err != nil {
		t.Fatal(err)
	}
	ask(r, asker, "0 192.0.2.2", "example.org", "1")

	// The agent is down: what reads /etc/hosts does not notice.
	r.names.Close()
	if res, err := r.Exec(t.Context(), asker.ID, []string{"/toolbox", "dig", "serve", "1"}); err != nil || res.ExitCode == 0 {
		t.Errorf("DNS without the agent: %q (%v), want it refused", res.Output, err)
	}
	if got := r.output(t, asker, "lookup", "serve"); got != a.IP+"\n" {
		t.Errorf("without the agent serve is at %q, want %s", got, a.IP)
	}

	// It is up again, and with it DNS for the containers that ran on.
	again := &rig{Engine: r.openWith(t, func(o *Options) { o.resolvConf = []string{node} })}
	ask(again, asker, "0 "+a.IP, "serve", "1")
	ask(again, asker, "0 192.0.2.2", "example.org", "1")
	if err := again.Remove(t.Context(), web.ID); err != nil {
		t.Fatal(err)
	}
	ask(again, asker, "0 192.0.2.2", "serve", "1")

	// The network of a container is made anew, as after a reboot.
	if err := again.Stop(t.Context(), asker.ID, patience); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(again.detach(again.in(t.Context()), marks.Key(asker.ID)), again.Start(t.Context(), asker)); err != nil {
		t.Fatal(err)
	}
	ask(again, asker, "0 192.0.2.2", "example.org", "1")
}

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// A container that executes its hosts file keeps it from being written (ETXTBSY, execve(2)).
// The others start, are removed and know each other meanwhile, and it knows them after.
func TestHostsFileInUse(t *testing.T) {
	t.Parallel()
	r := setup(t)
	busy := r.container("wait")
	r.run(t, busy)
	hosts := filepath.Join(r.dir(marks.Key(busy.ID)), "hosts")
	before, err := os.ReadFile(hosts)
	if err != nil {
		t.Fatal(err)
	}
	// The program is written in place, so that the container has it at /etc/hosts.
	if err := os.WriteFile(hosts, program(t), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(hosts, 0o755); err != nil {
		t.Fatal(err)
	}
	run := exec.Command(hosts, "hang")
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill := func() {
		if !killed {
			killed = true
			_ = run.Process.Kill()
			_ = run.Wait()
		}
	}
	t.Cleanup(kill)
	web, late := r.container("serve", "80", "x"), r.container("hang")
	r.run(t, web)
	r.run(t, late)
	a, err := r.net.Get(marks.Key(web.ID))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.output(t, late, "lookup", "serve"); got != a.IP+"\n" {
		t.Errorf("serve is at %q, want %s", got, a.IP)
	}
	if err := r.Remove(t.Context(), late.ID); err != nil {
		t.Errorf("remove another container: %v", err)
	}
	if b, err := os.ReadFile(hosts); err != nil || !bytes.Equal(b, program(t)) {
		t.Fatalf("the hosts file was written while it was executed (%v)", err)
	}
	kill()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		b, err := os.ReadFile(hosts)
		if err == nil && strings.HasPrefix(string(b), strings.SplitAfter(string(before), "\n")[0]) && strings.Contains(string(b), a.IP+"\tserve") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("hosts of the container, after it ended: %q %v", b[:min(len(b), 500)], err)
		}
	}
	if got := r.output(t, busy, "lookup", "serve"); got != a.IP+"\n" {
		t.Errorf("serve is at %q, want %s", got, a.IP)
	}
}
