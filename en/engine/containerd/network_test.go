package containerd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/en/engine"
	"github.com/colonyfleet/colony/en/engine/containerd/idfile"
	"github.com/colonyfleet/colony/en/engine/containerd/marks"
	"github.com/colonyfleet/colony/internal/bridgenet"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/protocol"
)

// fetch returns what an HTTP server answers.
func fetch(t *testing.T, url string) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// outside returns an address of this machine that is not a loopback.
func outside(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() && !strings.HasPrefix(a.String(), "10.89.") {
			return p.Addr().String()
		}
	}
	t.Fatalf("this machine has no address but loopbacks: %v", addrs)
	return ""
}

func TestPublishedPort(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("serve", "80", "hello")
	port := uint16(freeport.Everywhere(t))
	c.Spec.Ports = []protocol.Port{{Container: 80, Host: port}}
	r.run(t, c)
	awaitServing(t, r, c)
	for _, host := range []string{"127.0.0.1", outside(t)} {
		if got := fetch(t, "http://"+net.JoinHostPort(host, strconv.Itoa(int(port)))); got != "hello" {
			t.Errorf("%s answers %q", host, got)
		}
	}

	other := r.container("serve", "80", "late")
	other.ID.Deployment, other.Spec.Ports = "late", c.Spec.Ports
	err := r.Start(t.Context(), other)
	wantTaken(t, err, port, "serve of shop")
	if err := r.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), other); err != nil {
		t.Fatalf("the port is free again: %v", err)
	}
	awaitServing(t, r, other)
	if got := fetch(t, "http://127.0.0.1:"+strconv.Itoa(int(port))); got != "late" {
		t.Errorf("the second container answers %q", got)
	}
}

// A port that names no address answers on IPv6, too, and one that names an address there.
func TestPortsOnIPv6(t *testing.T) {
	t.Parallel()
	r := setup(t)
	every, own, four := uint16(freeport.Everywhere(t)), uint16(freeport.Everywhere(t)), uint16(freeport.Everywhere(t))
	c := r.container("serve", "80", "six")
	c.Spec.Ports = []protocol.Port{{Container: 80, Host: every}, {Container: 80, Host: own, HostIP: "::1"}, {Container: 80, Host: four, HostIP: "0.0.0.0"}}
	r.run(t, c)
	awaitServing(t, r, c)
	look := func(when string) {
		t.Helper()
		for address, want := range map[string]bool{
			fmt.Sprintf("127.0.0.1:%d", every): true, fmt.Sprintf("[::1]:%d", every): true,
			fmt.Sprintf("127.0.0.1:%d", own): false, fmt.Sprintf("[::1]:%d", own): true,
			fmt.Sprintf("127.0.0.1:%d", four): true, fmt.Sprintf("[::1]:%d", four): false,
		} {
			conn, err := net.Dial("tcp", address)
			if err == nil {
				err = conn.Close()
			}
			if (err == nil) != want {
				t.Errorf("%s: %s: %v, want it to answer: %v", when, address, err, want)
			}
			if want && fetch(t, "http://"+address) != "six" {
				t.Errorf("%s: %s answers something else", when, address)
			}
		}
	}
	look("at first")
	if err := r.Stop(t.Context(), c.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	awaitServing(t, r, c)
	look("after a restart")

	// Bridges have link-local addresses, by which containers would get around what keeps their
	// networks apart.
	bridge, err := net.InterfaceByName(r.net.Bridge("shop"))
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := bridge.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip, _, err := net.ParseCIDR(a.String()); err != nil || ip.To4() != nil {
			continue
		} else if res, err := r.Exec(t.Context(), c.ID, []string{"/toolbox", "get", fmt.Sprintf("http://[%s%%25eth0]:%d/", ip, every)}); err != nil || res.ExitCode == 0 {
			t.Errorf("the container reaches the port of the node at %s: %q (%v)", ip, res.Output, err)
		}
	}

	other := r.container("wait")
	other.ID.Name = "other"
	other.Spec.Ports = []protocol.Port{{Container: 80, Host: own, HostIP: "::1"}}
	wantTaken(t, r.Start(t.Context(), other), own, "another port")

	r.forward.Close() // as the end of an agent does
	next := r.open(t)
	look("with another agent")
	if err := next.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if err := next.Start(t.Context(), other); err != nil {
		t.Errorf("the port is free again: %v", err)
	}
}

func TestPortOfAProgram(t *testing.T) {
	t.Parallel()
	r := setup(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	c := r.container("wait")
	c.Spec.Ports = []protocol.Port{{Container: 80, Host: port}}
	if err := r.Pull(t.Context(), r.image, nil); err != nil {
		t.Fatal(err)
	}
	wantTaken(t, r.Start(t.Context(), c), port, "stop the program")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), c); err != nil {
		t.Errorf("the port is free again: %v", err)
	}
}

func wantTaken(t *testing.T, err error, port uint16, hint string) {
	t.Helper()
	if engine.CodeOf(err) != protocol.StartFailed || !strings.Contains(err.Error(), strconv.Itoa(int(port))) || !strings.Contains(err.Error(), hint) {
		t.Fatalf("error %v, want start_failed that names port %d and says %q", err, port, hint)
	}
}

// awaitServing waits until a "serve" container listens on port 80.
func awaitServing(t *testing.T, r *rig, c engine.Container) {
	t.Helper()
	for range 100 {
		res, err := r.Exec(t.Context(), c.ID, []string{"/toolbox", "get", "http://127.0.0.1:80"})
		if err == nil && res.ExitCode == 0 {
			return
		}
	}
	t.Fatalf("%s does not listen", c.ID)
}

// Containers of one deployment find each other by name, alias and after a
// restart of either; those of another deployment do not see them.
func TestNames(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.container("serve", "80", "by name")
	web.Spec.Aliases = []string{"shop-front"}
	client := r.container("wait")
	client.Spec.Hostname, client.Spec.ExtraHosts = "teller", []string{"printer=10.1.2.3", "node=host-gateway"}
	r.run(t, client)
	r.run(t, web) // later than its client
	awaitServing(t, r, web)
	for _, name := range []string{"serve", "shop-front", "serve.main"} {
		if got := r.output(t, client, "get", "http://"+name); got != "by name" {
			t.Errorf("%s answers %q", name, got)
		}
	}
	if got := r.output(t, client, "lookup", "printer"); got != "10.1.2.3\n" {
		t.Errorf("printer is at %q", got)
	}
	me, err := r.net.Get(marks.Key(client.ID))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.output(t, client, "lookup", "node"); got != me.Gateway+"\n" {
		t.Errorf("the node is at %q, want %s", got, me.Gateway)
	}
	if got := r.output(t, client, "id"); !strings.Contains(got, " teller ") {
		t.Errorf("identity %q, want the hostname teller", got)
	}
	stranger := r.container("wait")
	stranger.ID.Deployment = "news"
	r.run(t, stranger)
	if res, err := r.Exec(t.Context(), stranger.ID, []string{"/toolbox", "lookup", "serve"}); err != nil || res.ExitCode == 0 {
		t.Errorf("another deployment resolves serve to %q (%v)", res.Output, err)
	}
	if err := r.Remove(t.Context(), web.ID); err != nil {
		t.Fatal(err)
	}
	if got := r.output(t, client, "cat", "/etc/hosts"); strings.Contains(got, "shop-front") {
		t.Errorf("hosts still name a removed container:\n%s", got)
	}
}

func TestHostAndNoNetwork(t *testing.T) {
	t.Parallel()
	r := setup(t)
	port := strconv.Itoa(freeport.Everywhere(t))
	host := r.container("serve", port, "on the host")
	host.Spec.Network = protocol.NetworkHost
	r.run(t, host)
	none := r.container("wait")
	none.Spec.Network = protocol.NetworkNone
	r.run(t, none)
	for range 100 {
		res, err := r.Exec(t.Context(), host.ID, []string{"/toolbox", "get", "http://127.0.0.1:" + port})
		if err == nil && res.ExitCode == 0 {
			break
		}
	}
	if got := fetch(t, "http://127.0.0.1:"+port); got != "on the host" {
		t.Errorf("the host's network answers %q", got)
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got := r.output(t, host, "id"); !strings.Contains(got, " "+name+" ") {
		t.Errorf("identity %q, want the node's hostname %s", got, name)
	}
	if res, err := r.Exec(t.Context(), none.ID, []string{"/toolbox", "get", "http://" + net.JoinHostPort(outside(t), port)}); err != nil || res.ExitCode == 0 {
		t.Errorf("a container without a network reached the host: %q (%v)", res.Output, err)
	}
	all, err := r.List(t.Context())
	if err != nil || len(all) != 2 || all[0].IP != "" || all[1].IP != "" {
		t.Errorf("listed %+v %v, want two without addresses", all, err)
	}
}

// What a kill or a reboot leaves of a network is taken back by the next start.
func TestStaleNetwork(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.container("wait")
	k := marks.Key(c.ID)
	half := bridgenet.Attachment{Network: "shop", Group: "main", Name: c.ID.Name, Hostname: "x"}
	record := func() error {
		b, err := json.Marshal(half)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(r.opts.StateDir, "attachments", k+".json"), b, 0o600)
	}
	for name, prepare := range map[string]func() error{
		"attachment written, nothing done": record,
		"namespace file without a mount":   func() error { return os.WriteFile(r.net.NetNS(k), nil, 0o400) },
		"namespace made, not attached":     func() error { return errors.Join(record(), netns.Make(r.net.NetNS(k))) },
		"attached, address not written":    func() error { return errors.Join(r.net.Attach(t.Context(), k, half), record()) },
	} {
		if err := prepare(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r.run(t, c)
		all, err := r.List(t.Context())
		if err != nil || len(all) != 1 || all[0].State != engine.Running || all[0].IP == "" {
			t.Errorf("%s: listed %+v %v", name, all, err)
		}
		if err := r.Remove(t.Context(), c.ID); err != nil {
			t.Errorf("%s: remove: %v", name, err)
		}
	}
}

// Damage of what the engine keeps of a container that runs is reported, changes nothing of the container, and is
// repaired once the container is asked for again: its own name servers stay, and its id is written anew.
func TestDamagedSettingsOfNames(t *testing.T) {
	t.Parallel()
	for _, network := range []protocol.Network{protocol.NetworkBridge, protocol.NetworkHost} {
		r := setup(t)
		c := r.container("wait")
		c.Spec.Network, c.Spec.DNS = network, []string{"192.0.2.53"}
		r.run(t, c)
		k := marks.Key(c.ID)
		resolv, err := os.ReadFile(r.dir(k, "resolv.conf"))
		if err != nil || !strings.Contains(string(resolv), "192.0.2.53") {
			t.Fatalf("resolv.conf %q, %v", resolv, err)
		}
		for _, file := range []string{"names.json", idfile.Name} {
			b, err := os.ReadFile(r.dir(k, file))
			if err == nil {
				b[len(b)-9] ^= 0x20 // a letter becomes the same in the other case
				err = os.WriteFile(r.dir(k, file), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		var damaged []string
		e := r.openWith(t, func(o *Options) { o.Damaged = func(file string) { damaged = append(damaged, file) } })
		lost := func() bool {
			t.Helper()
			all, err := e.List(t.Context())
			if err != nil || len(all) != 1 || all[0].State != engine.Running {
				t.Fatalf("listed %+v, %v", all, err)
			}
			return all[0].NetworkLost
		}
		same := func(when string) {
			t.Helper()
			if b, err := os.ReadFile(r.dir(k, "resolv.conf")); err != nil || string(b) != string(resolv) {
				t.Errorf("%s resolv.conf is %q, %v; was %q", when, b, err, resolv)
			}
		}
		same("after the damage")
		if !lost() {
			t.Error("nobody asks for the settings")
		}
		if err := e.Start(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		same("after the repair")
		if lost() {
			t.Error("after the repair the settings are asked for still")
		}
		if err := e.Sweep(t.Context(), engine.SweepOptions{KeepAllImages: true}); err != nil {
			t.Error(err)
		}
		if ids, again, err := idfile.All(r.dir(""), marks.Key); err != nil || len(again) > 0 || ids[k] != c.ID {
			t.Errorf("after a sweep the ids are %v, %v, %v", ids, again, err)
		}
		if want := []string{"en/names " + k, "en/container " + k}; !slices.Equal(damaged, want) {
			t.Errorf("damage was reported of %q, want %q", damaged, want)
		}
		if err := e.Remove(t.Context(), c.ID); err != nil {
			t.Error(err)
		}
	}
}
