package bridgenet

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// pluginTimeout bounds one run of the plugins.
const pluginTimeout = 30 * time.Second

// whole returns a context for a run of the plugins. The caller's end does not cut
// it short: a plugin that is killed half way leaves rules in the packet filter
// that no later run finds again.
func whole(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), pluginTimeout)
}

// del runs the plugins to take an attachment back. Where they fail it removes
// the masquerading rules of the container that an earlier, broken run left, which
// keep its chain in use, and tries once more.
func (n *Networks) del(ctx context.Context, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
	ctx, cancel := whole(ctx)
	defer cancel()
	err := n.cni.DelNetworkList(ctx, list, rt)
	if err == nil {
		return nil
	}
	removed, repairErr := removeRules(ctx, list.Name, rt.ContainerID)
	if repairErr != nil {
		return fmt.Errorf("%w (and it cannot be repaired: %w)", err, repairErr)
	}
	if removed == 0 {
		return err
	}
	return n.cni.DelNetworkList(ctx, list, rt)
}

// masquerade is a rule of the bridge plugin, as iptables -S shows it.
var masquerade = regexp.MustCompile(`^-A POSTROUTING -s (\S+) -m comment --comment "name: \\"(\S+)\\" id: \\"(\S+)\\"" -j (CNI-[0-9a-f]+)$`)

// removeRules removes the masquerading rules of one container and returns how many.
func removeRules(ctx context.Context, network, container string) (removed int, err error) {
	out, err := exec.CommandContext(ctx, "iptables", "-t", "nat", "--wait", "-S", "POSTROUTING").Output()
	if err != nil {
		return 0, fmt.Errorf("list packet filter rules: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		m := masquerade.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || m[2] != network || m[3] != container {
			continue
		}
		comment := fmt.Sprintf("name: %q id: %q", network, container)
		cmd := exec.CommandContext(ctx, "iptables", "-t", "nat", "--wait", "-D", "POSTROUTING", "-s", m[1], "-m", "comment", "--comment", comment, "-j", m[4])
		if out, err := cmd.CombinedOutput(); err != nil {
			return removed, fmt.Errorf("remove packet filter rule: %w: %s", err, strings.TrimSpace(string(out)))
		}
		removed++
	}
	return removed, nil
}
