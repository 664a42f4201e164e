package semantics

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/protocol"
)

// damageAttachments flips a bit in the records of the networks of the containers of a
// deployment whose names match.
func (d *deployed) damageAttachments(t *testing.T, pattern string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(d.opts.StateDir, "attachments", string(d.name)+"-"+pattern+"-*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("attachments %q, %v", files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 4
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Containers whose records of the network are damaged while they run, with the agent up or
// down, are not replaced: they and those that replace others find each other by every name,
// their ports are published and known, and updates and rollbacks go on.
func TestDamagedNetworkOfARunningContainer(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.87.0.0/16")
	port := freeport.Ports(t, 1)[0]
	file := func(version int, lines ...string) string {
		return entry("a", fmt.Sprintf("environment: {VERSION: '%d'}", version), "networks: [front, back]") +
			entry("guest", "network_mode: service:web") +
			entry("web", "command: [serve, '80', web]", fmt.Sprintf("ports: ['127.0.0.1:%d:80', '80']", port), "networks: {front: {aliases: [shop]}}",
				"extra_hosts: ['plc=192.0.2.7']", "healthcheck: {test: [CMD, /toolbox, get, 'http://127.0.0.1:80/'], interval: 1s}") +
			entry("db", append([]string{"networks: [back]"}, lines...)...) + "networks: {front: {}, back: {internal: true}}\n"
	}
	d, err := n.deploy("net", "services:\n"+file(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, d.installed)
	first, err := d.status("web")
	if err != nil || len(first.Ports) != 2 {
		t.Fatalf("web is %+v (%v), want two ports", first, err)
	}
	guest, err := d.status("guest")
	if err != nil {
		t.Fatal(err)
	}
	chosen := int(first.Ports[0].Host)
	if chosen == port {
		chosen = int(first.Ports[1].Host)
	}
	whole := func(d *deployed) error {
		web, err := d.status("web")
		if err != nil {
			return err
		}
		a, err := d.status("a")
		if err != nil {
			return err
		}
		if diff := cmp.Diff(first, web); diff != "" {
			return errors.New(diff)
		}
		for _, name := range []string{"web", "shop"} {
			if err := all(saysIn("a", web.IP, "lookup", name), saysIn("a", "0 "+web.IP, "dig", name, "1"))(d); err != nil {
				return err
			}
		}
		return all(
			saysIn("web", a.IP, "lookup", "a"), saysIn("guest", "0 "+a.IP, "dig", "a", "1"), saysIn("web", "192.0.2.7", "lookup", "plc"),
			saysIn("a", "0 10.", "dig", "db", "1"), fetched("127.0.0.1", port, "web"), fetched("127.0.0.1", chosen, "web"),
		)(d)
	}
	if err := whole(d); err != nil {
		t.Fatalf("at first: %v", err)
	}

	d.damageAttachments(t, "web")
	d = d.update(t, "services:\n"+file(2))
	await(t, func() error { return whole(d) })

	n.stop(t)
	d.damageAttachments(t, "*")
	n.start(t)
	await(t, func() error { return whole(d) })

	d.damageAttachments(t, "*")
	bad, err := n.deploy("net", "services:\n"+file(2, "command: [exit, '1', no]", starting), nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() error { return bad.failed(protocol.StartFailed, "no") })
	d = bad.update(t, "services:\n"+file(2))
	await(t, func() error { return whole(d) })
	if now, err := d.status("guest"); err != nil || !cmp.Equal(now, guest) {
		t.Errorf("what shares a network is %+v (%v), was %+v", now, err, guest)
	}
}
