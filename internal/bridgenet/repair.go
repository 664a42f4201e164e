package bridgenet

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/colonyfleet/colony/protocol"
)

// pluginTimeout bounds one run of the plugins.
const pluginTimeout = 30 * time.Second

// whole returns a context for a run of the plugins. The caller's end does not cut
// it short: a plugin that is killed half way leaves rules in the packet filter
// that no later run finds again.
func whole(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), pluginTimeout)
}

// del runs the plugins to undo an attachment, and then removes what they
// leave. The bridge plugin reads from the container's interface which
// masquerading rules to remove; where the interface is missing, because an earlier
// run was killed or the namespace was lost, it removes none and reports success.
// A rule left so keeps the chain in use, and a later run with another address
// fails on that; such a run is made once more.
func (n *Networks) del(ctx context.Context, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
	err := n.delOnce(ctx, list, rt)
	removed, sweepErr := sweepRules(ctx, list.Name, rt.ContainerID)
	if sweepErr != nil {
		return errors.Join(err, sweepErr)
	}
	if err == nil || !removed {
		return err
	}
	return n.delOnce(ctx, list, rt)
}

func (n *Networks) delOnce(ctx context.Context, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
	ctx, cancel := whole(ctx)
	defer cancel()
	return n.cni.DelNetworkList(ctx, list, rt)
}

// release undoes the attachments of a container that has no record, because its file was damaged.
// Otherwise the address that it had, and the rules that lead to its ports, would stay, and clients
// of a port would be led to an address without a container. The cache of the plugins names the
// bridges, and so do the addresses that they reserved.
func (n *Networks) release(ctx context.Context, key string) error {
	type end struct{ bridge, device string }
	found := map[end]bool{}
	paths, err := filepath.Glob(filepath.Join(n.dir, "cni", "cache", "results", "*-"+key+"-eth[0-9]*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		name := filepath.Base(path)
		at := strings.LastIndex(name, "-"+key+"-eth")
		found[end{name[:at], name[at+len("-"+key+"-"):]}] = true
	}
	bridges, err := n.made()
	if err != nil {
		return err
	}
	for _, b := range bridges {
		reserved, err := n.reservations(b)
		if err != nil {
			return err
		}
		for _, r := range reserved {
			if id, device, _ := strings.Cut(strings.TrimSpace(string(r.content)), lineBreak); id == key {
				found[end{b, device}] = true
			}
		}
	}
	for e := range found {
		if err := n.releaseOn(ctx, key, e.bridge, e.device); err != nil {
			return err
		}
	}
	return nil
}

// releaseOn undoes one interface of a container of which there is no record.
func (n *Networks) releaseOn(ctx context.Context, key, bridge, device string) error {
	// The plugins find what they made by the container and its interface; they want
	// some subnet and some port all the same.
	list, err := n.configOf(bridge, Link{}, netip.PrefixFrom(n.pool.Addr(), 24), true)
	if err != nil {
		return err
	}
	rt := n.runtime(key, Attachment{Ports: []protocol.Port{{Host: 1, Container: 1}}}, 0)
	rt.NetNS, rt.IfName = "", device
	if err := n.del(ctx, list, rt); err != nil {
		return fmt.Errorf("release what container %s has on bridge %s: %w", key, bridge, err)
	}
	return nil
}

// masqueradeChain is the name that the bridge plugin gives to the chain of a
// container in the table nat.
func masqueradeChain(network, container string) string {
	sum := sha512.Sum512([]byte(network + container))
	return "CNI-" + hex.EncodeToString(sum[:12])
}

// masqueraded is a rule of the bridge plugin that leads to the chain of one
// container, as iptables -S shows it.
var masqueraded = regexp.MustCompile(`^-A POSTROUTING -s (\S+) -m comment --comment "(name: \\"\S+\\" id: \\"\S+\\")" -j (CNI-[0-9a-f]+)$`)

// sweepRules removes the masquerading rules and the chain of one container and
// reports whether there were any. Without iptables there can be none.
func sweepRules(ctx context.Context, network, container string) (removed bool, err error) {
	ctx, cancel := whole(ctx)
	defer cancel()
	rules, err := iptables(ctx, "nat", "-S")
	if errors.Is(err, exec.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list packet filter rules: %w", err)
	}
	chain := masqueradeChain(network, container)
	declared := false
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		declared = declared || line == "-N "+chain
		m := masqueraded.FindStringSubmatch(line)
		if m == nil || m[3] != chain {
			continue
		}
		comment := strings.ReplaceAll(m[2], `\"`, `"`)
		if _, err := iptables(ctx, "nat", "-D", "POSTROUTING", "-s", m[1], "-m", "comment", "--comment", comment, "-j", chain); err != nil {
			return removed, fmt.Errorf("remove packet filter rule: %w", err)
		}
		removed = true
	}
	if !declared {
		return removed, nil
	}
	for _, command := range []string{"-F", "-X"} {
		if _, err := iptables(ctx, "nat", command, chain); err != nil {
			return removed, fmt.Errorf("remove packet filter chain: %w", err)
		}
	}
	return true, nil
}

// isolated are the rules of the firewall plugin that keep bridges apart, as iptables -S shows
// them. The plugin never removes one.
var isolated = regexp.MustCompile(`^-A (CNI-ISOLATION-STAGE-[12]) (.*(?:-i|-o) (\S+) .*)$`)

// sweepIsolation removes the rules that keep a bridge apart from others. Without iptables
// there can be none.
func sweepIsolation(ctx context.Context, bridge string) error {
	ctx, cancel := whole(ctx)
	defer cancel()
	rules, err := iptables(ctx, "filter", "-S")
	if errors.Is(err, exec.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list packet filter rules: %w", err)
	}
	for line := range strings.Lines(rules) {
		m := isolated.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || m[3] != bridge {
			continue
		}
		rule := []string{"filter", "-D", m[1]}
		for i, part := range strings.Split(m[2], `"`) {
			if i%2 == 1 { // what stood in quotes
				rule = append(rule, part)
			} else {
				rule = append(rule, strings.Fields(part)...)
			}
		}
		if _, err := iptables(ctx, rule[0], rule[1:]...); err != nil {
			return fmt.Errorf("remove packet filter rule: %w", err)
		}
	}
	return nil
}

// iptables runs one command on a table.
func iptables(ctx context.Context, table string, args ...string) (stdout string, err error) {
	args = append([]string{"--wait", "-t", table}, args...)
	out, err := exec.CommandContext(ctx, "iptables", args...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return "", fmt.Errorf("iptables %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}
