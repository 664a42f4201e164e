package link

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/identity/store"
	"github.com/colonyfleet/colony/internal/childproc"
	"github.com/colonyfleet/colony/internal/netns"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/sim"
)

var (
	wanKeepAlive = flag.Duration("wan-keep-alive", 2*time.Second, "keep-alive of the idle sites of TestIdleBytes")
	wanNodes     = flag.String("wan-nodes", "10,200", "how many nodes they have")
	wanPings     = flag.Int("wan-pings", 10, "for how many keep-alives the bytes are counted")
)

// pingBytes is what a ping takes on an Ethernet: PINGREQ, PINGRESP with the
// acknowledgement of the first, and the acknowledgement of the second. Each is a
// header of Ethernet, IPv4 and TCP with time stamps, and two of them carry 2 bytes.
const pingBytes = 3*(14+20+32) + 2*2

// childEnv makes this program a part of a test, in a namespace of its own.
const childEnv = "COLONY_LINK_CHILD"

// TestIdleBytes counts what a site on which nothing happens sends and receives
// over its WAN: on the wire between two network namespaces, the CO in one, the LO
// and its nodes in the other. Nodes must not cost anything there, and the rest
// must be near what an MQTT connection costs that does nothing but live.
func TestIdleBytes(t *testing.T) { idleBytes(t, false) }

// TestIdleBytesTLS is TestIdleBytes for sites that are connected by mutual TLS, beside a bare connection without it.
func TestIdleBytesTLS(t *testing.T) { idleBytes(t, true) }

func idleBytes(t *testing.T, tls bool) {
	r := newRig(t)
	w := &wan{t: t, r: r, co: namespace(t, r.dir, "co"), tls: tls}
	r.coOptions.MQTT, r.coOptions.HTTP = "0.0.0.0:1884", "127.0.0.1:8080"
	r.co.before = inside(w.co)
	if tls {
		w.certify()
	}
	sites := []*idleSite{w.site(1, 0)}
	for i, word := range strings.Split(*wanNodes, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		sites = append(sites, w.site(i+2, n))
	}
	r.co.start(r.coOptions)
	for _, s := range sites {
		s.start()
	}
	if tls {
		w.admit(sites)
	}
	eventually(t, 3*time.Minute, "all sites and nodes are online", func() error {
		return w.online(sites)
	})
	<-time.After(3 * time.Second) // what they had to say is said
	var faults []string
	for range 3 { // a busy machine acknowledges late, which takes packets of its own
		var wg sync.WaitGroup
		for _, s := range sites {
			wg.Go(func() { s.count(*wanPings) })
		}
		wg.Wait()
		if faults = verdict(sites); len(faults) == 0 {
			break
		}
	}
	for _, s := range sites {
		t.Log(s)
	}
	for _, f := range faults {
		t.Error(f)
	}
}

// verdict says what the sites take that they should not.
func verdict(sites []*idleSite) (faults []string) {
	pings := float64(*wanPings * pingBytes)
	least, most := 0.0, 0.0
	for _, s := range sites {
		used := float64(s.used.bytes)
		switch {
		case s.err != nil:
			faults = append(faults, s.err.Error())
		case used > 1.3*pings:
			faults = append(faults, fmt.Sprintf("%s: more than 1.3 × the floor", s))
		case used < 0.9*pings:
			faults = append(faults, fmt.Sprintf("%s: less than the pings alone take, so something was not counted", s))
		}
		if s.nodes == 0 {
			continue
		}
		if least == 0 || used < least {
			least = used
		}
		most = max(most, used)
	}
	if most > 1.1*least {
		faults = append(faults, fmt.Sprintf("between %.0f and %.0f bytes: not within 10 %% of each other", least, most))
	}
	return faults
}

func (s *idleSite) String() string {
	name := fmt.Sprintf("%d nodes", s.nodes)
	if s.nodes == 0 {
		name = "bare MQTT connection"
	}
	each := float64(s.used.bytes) / float64(*wanPings)
	return fmt.Sprintf("keep-alive %s, %s: %.0f bytes and %.1f packets for each keep-alive, %.2f × the floor, %.2f MB a month",
		*wanKeepAlive, name, each, float64(s.used.packets)/float64(*wanPings), each/pingBytes, each*(30*24*time.Hour).Seconds()/wanKeepAlive.Seconds()/1e6)
}

// wan is a CO in a namespace with one wire to each site.
type wan struct {
	t  *testing.T
	r  *rig
	co string
	// tls says that sites are connected by mutual TLS.
	tls bool
}

// certify gives the CO a root, and addresses for machines with certificates.
func (w *wan) certify() {
	w.t.Helper()
	files, err := store.Open(nil, store.Dir(w.r.coOptions.StateDir))
	if err == nil {
		_, _, err = files.InitRoot(time.Now())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.r.coOptions.Identity = co.IdentityOptions{Enrol: "0.0.0.0:8886", MQTT: "0.0.0.0:8884"}
}

// admit gives the LO of each site its join token.
func (w *wan) admit(sites []*idleSite) {
	w.t.Helper()
	for _, s := range sites {
		if s.nodes == 0 {
			continue
		}
		testpart.Within(w.t, 3*time.Minute, "the CO makes a join token for "+s.name, func() error {
			cmd := command(w.co, w.r.program, "site", "add", s.name, "-o", "json")
			cmd.Env = append(os.Environ(), "COLONY_URL=http://"+w.r.coOptions.HTTP)
			out, err := cmd.Output()
			if err != nil {
				return err
			}
			var made struct{ Token string }
			if err := json.Unmarshal(out, &made); err != nil || made.Token == "" {
				return fmt.Errorf("token: %w: %s", err, out)
			}
			return os.WriteFile(s.options.TokenFile(), []byte(made.Token), 0o600)
		})
	}
}

// idleSite is a site, or with 0 nodes a bare connection in its place.
type idleSite struct {
	w        *wan
	name     string
	ns       string
	nodes    int
	options  lo.Options
	lo       *process
	used     traffic
	err      error
	children []*childproc.Child
}

type traffic struct{ bytes, packets int64 }

// namespace makes a network namespace that goes with the test.
func namespace(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, "netns", name)
	if err := netns.Make(path); err != nil {
		t.Fatalf("%v: this test makes network namespaces and must be run by root", err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

// inside returns the words of a command that runs another in a namespace.
func inside(ns string) []string { return []string{"nsenter", "--net=" + ns} }

func run(t *testing.T, ns string, words ...string) []byte {
	t.Helper()
	out, err := command(ns, words...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(words, " "), err, out)
	}
	return out
}

func command(ns string, words ...string) *exec.Cmd {
	words = append(inside(ns), words...)
	return exec.Command(words[0], words[1:]...)
}

// site makes a namespace for a site, and a wire to the CO's.
func (w *wan) site(number, nodes int) *idleSite {
	w.t.Helper()
	s := &idleSite{w: w, name: fmt.Sprintf("site-%d", number), nodes: nodes}
	s.ns = namespace(w.t, w.r.dir, s.name)
	here, there := "wan0", fmt.Sprintf("wan%d", number)
	run(w.t, s.ns, "ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", w.co)
	for i, end := range []struct{ ns, name string }{{w.co, there}, {s.ns, here}} {
		// A WAN has no neighbour discovery, and ours speaks IPv4.
		run(w.t, end.ns, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/"+end.name+"/disable_ipv6")
		run(w.t, end.ns, "ip", "link", "set", end.name, "address", fmt.Sprintf("02:00:00:00:%02x:%02x", number, i+1), "arp", "off", "up")
		run(w.t, end.ns, "ip", "address", "add", fmt.Sprintf("10.77.%d.%d/30", number, i+1), "dev", end.name)
		run(w.t, end.ns, "ip", "neigh", "replace", fmt.Sprintf("10.77.%d.%d", number, 2-i), "lladdr", fmt.Sprintf("02:00:00:00:%02x:%02x", number, 2-i), "dev", end.name, "nud", "permanent")
	}
	s.options = lo.DefaultOptions()
	o := &s.options
	o.Site, o.StateDir, o.MQTT, o.HTTP = protocol.SiteID(s.name), filepath.Join(w.r.dir, s.name), "127.0.0.1:1883", ""
	o.CO.MQTT, o.CO.KeepAlive = []string{"tcp://" + s.co("1884")}, *wanKeepAlive
	if w.tls {
		o.CO.MQTT, o.CO.Enrol = []string{"tls://" + s.co("8884")}, []string{s.co("8886")}
		if err := os.MkdirAll(filepath.Dir(o.TokenFile()), 0o700); err != nil {
			w.t.Fatal(err)
		}
	}
	s.lo = newProcess(w.t, s.name, "lo", w.r.program, w.r.dir)
	s.lo.before = inside(s.ns)
	w.t.Cleanup(s.stop)
	return s
}

// co is an address of the CO on this site's wire.
func (s *idleSite) co(port string) string {
	return "10.77." + strings.TrimPrefix(s.name, "site-") + ".1:" + port
}

func (s *idleSite) start() {
	s.w.t.Helper()
	if s.nodes == 0 {
		name := s.name
		if s.w.tls {
			name = "probe@" + name // a site has a certificate
		}
		s.child("ping " + name + " " + s.co("1884") + " " + wanKeepAlive.String())
		return
	}
	s.lo.start(s.options)
	s.child(fmt.Sprintf("fleet %s %d", s.name, s.nodes))
}

// child runs this program as a part of the test in the site's namespace.
func (s *idleSite) child(what string) {
	s.w.t.Helper()
	cmd := command(s.ns, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	cmd.Stderr = os.Stderr
	c, err := childproc.Start(cmd, syscall.SIGKILL)
	if err != nil {
		s.w.t.Fatal(err)
	}
	s.children = append(s.children, c)
}

func (s *idleSite) stop() {
	for _, c := range s.children {
		c.Signal(syscall.SIGKILL)
		<-c.Done()
	}
	s.lo.Stop()
}

// online checks that the CO knows each site and all its nodes as online.
func (w *wan) online(sites []*idleSite) error {
	type row struct {
		ID    string
		Up    bool
		Nodes int64
	}
	var errs []error
	got := map[string]row{}
	if len(query[row](w.r, `select table_name, true, 0::bigint from information_schema.tables where table_name = 'nodes'`)) == 0 {
		return errNotYet // the CO has not made its tables
	}
	for _, s := range query[row](w.r, `select id, online, (select count(*) from nodes n where n.site = s.id and n.online and inventory is not null) from sites s`) {
		got[s.ID] = s
	}
	for _, s := range sites {
		if have := got[s.name]; s.nodes > 0 && (!have.Up || have.Nodes != int64(s.nodes)) {
			errs = append(errs, fmt.Errorf("%s: %+v, want %d nodes", s.name, have, s.nodes))
		}
	}
	return errors.Join(errs...)
}

// count notes what went over the site's wire in a number of keep-alives, if it is
// less than what was counted before.
func (s *idleSite) count(pings int) {
	wait := s.afterPing
	if *wanKeepAlive > 20*time.Second {
		wait = s.calm // the next ping is far
	}
	if s.err = wait(); s.err != nil {
		return
	}
	was, err := s.traffic()
	if err != nil {
		s.err = err
		return
	}
	<-time.After(time.Duration(pings) * *wanKeepAlive)
	now, err := s.traffic()
	if s.err = err; err != nil {
		return
	}
	used := traffic{now.bytes - was.bytes, now.packets - was.packets}
	if s.used.bytes == 0 || used.bytes < s.used.bytes {
		s.used = used
	}
}

// calm waits until nothing has gone over the wire for a while.
func (s *idleSite) calm() error {
	var last traffic
	for since := time.Now(); time.Since(since) < 8*time.Second; {
		now, err := s.traffic()
		if err != nil {
			return err
		}
		if now != last {
			last, since = now, time.Now()
		}
		<-time.After(200 * time.Millisecond)
	}
	return nil
}

// afterPing waits until the next ping is as far as the last one.
func (s *idleSite) afterPing() error {
	was, err := s.traffic()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(3 * *wanKeepAlive)
	for {
		<-time.After(50 * time.Millisecond)
		now, err := s.traffic()
		if err != nil {
			return err
		}
		if now != was {
			<-time.After(*wanKeepAlive / 2)
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: nothing went over its wire in three keep-alives", s.name)
		}
	}
}

// traffic is what went over the site's wire, both ways, Ethernet headers included.
func (s *idleSite) traffic() (traffic, error) {
	out, err := command(s.ns, "ip", "-s", "-j", "link", "show", "wan0").Output()
	if err != nil {
		return traffic{}, fmt.Errorf("read counters: %w", err)
	}
	var links []struct {
		Stats map[string]struct{ Bytes, Packets int64 } `json:"stats64"`
	}
	if err := json.Unmarshal(out, &links); err != nil || len(links) != 1 {
		return traffic{}, fmt.Errorf("read counters: %w: %s", err, out)
	}
	rx, tx := links[0].Stats["rx"], links[0].Stats["tx"]
	return traffic{rx.Bytes + tx.Bytes, rx.Packets + tx.Packets}, nil
}

// child is what this program does in a namespace, until it is killed.
func child(what string) int {
	words := strings.Fields(what)
	var err error
	switch words[0] {
	case "fleet":
		err = runFleet(words[1], words[2])
	case "ping":
		err = runPings(words[1], words[2], words[3])
	}
	fmt.Fprintln(os.Stderr, what, "ended:", err)
	return 1
}

// runFleet is the nodes of a site, with heartbeats every 30 s.
func runFleet(site, nodes string) error {
	n, err := strconv.Atoi(nodes)
	if err != nil {
		return err
	}
	f, err := sim.New(sim.Options{Site: protocol.SiteID(site), URL: "tcp://127.0.0.1:1883", Nodes: n, Seed: 1, Heartbeat: 30 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if err := f.Start(context.Background()); err != nil {
		return err
	}
	select {}
}

// runPings is an MQTT 5 connection that does nothing but live.
func runPings(site, addr, keepAlive string) error {
	every, err := time.ParseDuration(keepAlive)
	if err != nil {
		return err
	}
	var c net.Conn
	for range 600 { // the CO may still be starting
		d := net.Dialer{KeepAlive: -1, Timeout: time.Second}
		if c, err = d.Dial("tcp", addr); err == nil {
			break
		}
		<-time.After(200 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	// MQTT 5, section 3.1: clean start and a user name; no properties.
	var b bytes.Buffer
	b.WriteString("\x00\x04MQTT\x05\x82")
	_ = binary.Write(&b, binary.BigEndian, uint16((every+time.Second-1)/time.Second))
	b.WriteByte(0)
	for range 2 { // client id, user name
		_ = binary.Write(&b, binary.BigEndian, uint16(len(site)))
		b.WriteString(site)
	}
	if _, err := c.Write(append([]byte{0x10, byte(b.Len())}, b.Bytes()...)); err != nil {
		return err
	}
	head := make([]byte, 2)
	if _, err := io.ReadFull(c, head); err != nil || head[0] != 0x20 {
		return fmt.Errorf("CONNACK: %x, %w", head, err)
	}
	ack := make([]byte, head[1])
	if _, err := io.ReadFull(c, ack); err != nil || ack[1] != 0 {
		return fmt.Errorf("CONNACK: %x, %w", ack, err)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range tick.C {
		if _, err := c.Write([]byte{0xC0, 0}); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
	}
	return nil
}
