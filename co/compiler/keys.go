package compiler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/protocol"
)

// keys are the keys that a compose.yaml may have, as paths: * stands for any
// name, [] for an item of a list. A test holds them and docs/compose.md together.
var keys = pathSet(`
name
version
services
services.*
services.*.image
services.*.entrypoint
services.*.command
services.*.environment
services.*.env_file
services.*.env_file[].path
services.*.env_file[].required
services.*.working_dir
services.*.user
services.*.hostname
services.*.container_name
services.*.ports
services.*.ports[].target
services.*.ports[].published
services.*.ports[].host_ip
services.*.ports[].protocol
services.*.ports[].mode
services.*.volumes
services.*.volumes[].type
services.*.volumes[].source
services.*.volumes[].target
services.*.volumes[].read_only
services.*.volumes[].consistency
services.*.volumes[].bind
services.*.volumes[].bind.create_host_path
services.*.volumes[].bind.selinux
services.*.volumes[].tmpfs
services.*.volumes[].tmpfs.size
services.*.tmpfs
services.*.configs
services.*.configs[].source
services.*.configs[].target
services.*.configs[].mode
services.*.devices
services.*.devices[].source
services.*.devices[].target
services.*.devices[].permissions
services.*.cpus
services.*.mem_limit
services.*.pids_limit
services.*.deploy
services.*.deploy.mode
services.*.deploy.replicas
services.*.deploy.resources
services.*.deploy.resources.limits
services.*.deploy.resources.limits.cpus
services.*.deploy.resources.limits.memory
services.*.deploy.resources.limits.pids
services.*.deploy.restart_policy
services.*.deploy.restart_policy.condition
services.*.deploy.restart_policy.max_attempts
services.*.restart
services.*.healthcheck
services.*.healthcheck.test
services.*.healthcheck.interval
services.*.healthcheck.timeout
services.*.healthcheck.retries
services.*.healthcheck.start_period
services.*.healthcheck.start_interval
services.*.healthcheck.disable
services.*.x-colony-health
services.*.depends_on
services.*.depends_on.*
services.*.depends_on.*.condition
services.*.depends_on.*.required
services.*.depends_on.*.restart
services.*.network_mode
services.*.networks
services.*.networks.*
services.*.networks.*.aliases
services.*.networks.*.ipv4_address
services.*.networks.*.ipv6_address
services.*.cap_add
services.*.cap_drop
services.*.privileged
services.*.read_only
services.*.stop_signal
services.*.stop_grace_period
services.*.labels
services.*.extra_hosts
services.*.sysctls
services.*.group_add
services.*.expose
services.*.logging
services.*.logging.driver
services.*.logging.options
services.*.links
services.*.scale
services.*.attach
services.*.pull_policy
services.*.profiles
services.*.extends
services.*.extends.service
volumes
volumes.*
volumes.*.driver
volumes.*.name
volumes.*.external
volumes.*.labels
networks
networks.*
networks.*.driver
networks.*.name
networks.*.external
networks.*.attachable
networks.*.ipam
networks.*.labels
configs
configs.*
configs.*.file
configs.*.content
`)

// open are the keys whose mappings hold names that the author chooses, and no
// keys of Compose below them.
var open = pathSet(`
services.*.environment
services.*.labels
services.*.extra_hosts
services.*.sysctls
services.*.x-colony-health
services.*.logging.options
volumes.*.labels
networks.*.ipam
networks.*.labels
`)

// reasons say why a key is refused, where there is more to say than that it is
// not supported.
var reasons = map[string]string{
	"services.*.build":                         "images are not built on nodes, they come from a registry: build the image, push it to the CO's registry or another one, and name it in image",
	"secrets":                                  "secrets are not part of Margo's Compose archives and Colony does not deliver them yet: mount them from the node with a bind volume",
	"services.*.secrets":                       "secrets are not part of Margo's Compose archives and Colony does not deliver them yet: mount them from the node with a bind volume",
	"services.*.extends.file":                  "an archive has one Compose file: copy the service into compose.yaml, and extend it there",
	"volumes.*.driver_opts":                    "a volume of the deployment takes no options: for a directory of the node, bind its path",
	"networks.*.internal":                      "the network of a deployment leads out through the node: use network_mode none for a service that needs no network",
	"include":                                  "an archive has one Compose file: copy the services into compose.yaml",
	"services.*.deploy.placement":              "nodes are chosen by the deployment's selector and its deviceConstraints",
	"services.*.deploy.update_config":          "updates and rollbacks follow the policy of the deployment",
	"services.*.deploy.rollback_config":        "updates and rollbacks follow the policy of the deployment",
	"services.*.deploy.resources.reservations": "state what the application needs in deviceConstraints.capacityRequirements",
	"services.*.deploy.restart_policy.delay":   "the agent waits between restarts by its own backoff",
	"services.*.deploy.restart_policy.window":  "the agent waits between restarts by its own backoff",
	"configs.*.external":                       "configs come from the archive: use file or content",
}

func pathSet(lines string) map[string]bool {
	set := map[string]bool{}
	for line := range strings.FieldsSeq(lines) {
		set[line] = true
	}
	return set
}

// The bounds of a compose.yaml, with every alias expanded.
const (
	maxValues = 20_000
	maxDepth  = 40
)

// A keyCheck walks a compose.yaml.
type keyCheck struct {
	values   int
	problems []string
	lines    map[string]int // of the keys, by path
}

// checkKeys parses a compose.yaml, refuses every key that is not in the table, and
// returns the document, aliases and merge keys resolved, and the lines of its keys by
// path.
func checkKeys(component string, compose []byte) (map[string]any, map[string]int, error) {
	fail := func(err error) error {
		return protocol.Errorf(protocol.Invalid, "component %s: %s: %w", component, composeFile, err)
	}
	var root yaml.Node
	if err := yaml.Load(compose, &root, yaml.WithUniqueKeys(false)); err != nil {
		return nil, nil, fail(err)
	}
	top := &root
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		top = root.Content[0]
	}
	if top.Kind != yaml.MappingNode {
		return nil, nil, fail(fmt.Errorf("line %d: want a mapping with services", top.Line))
	}
	c := keyCheck{lines: map[string]int{}}
	c.walk(top, "", "", 0)
	if len(c.problems) > 0 {
		return nil, nil, fail(fmt.Errorf("\n%s", strings.Join(c.problems, "\n")))
	}
	var document map[string]any
	if err := root.Decode(&document); err != nil {
		return nil, nil, fail(err)
	}
	delete(document, "version") // obsolete: it says nothing
	return document, c.lines, nil
}

func (c *keyCheck) problem(n *yaml.Node, at, format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf("line %d: %s: %s", n.Line, at, fmt.Sprintf(format, args...)))
}

// walk checks a node: pattern is its path in the table, at the one in the document.
// It returns false when the document is too large to go on.
func (c *keyCheck) walk(n *yaml.Node, pattern, at string, depth int) bool {
	if c.values++; c.values > maxValues || depth > maxDepth {
		c.problem(n, at, "the document is too large: at most %d values and %d levels, aliases expanded", maxValues, maxDepth)
		return false
	}
	if n.Kind == yaml.AliasNode {
		return c.walk(n.Alias, pattern, at, depth+1)
	}
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		c.problem(n, at, "the tag %s has no meaning in a single file", n.Tag)
		return true
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str" // an environment variable with a date is what the author wrote
	}
	if n.Kind == yaml.SequenceNode {
		for i, item := range n.Content {
			if !c.walk(item, pattern+"[]", fmt.Sprintf("%s[%d]", at, i), depth+1) {
				return false
			}
		}
	}
	if n.Kind != yaml.MappingNode {
		return true
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		path := strings.TrimPrefix(at+"."+k.Value, ".")
		switch {
		case k.Kind != yaml.ScalarNode:
			c.problem(k, at, "want a plain key")
			continue
		case k.ShortTag() == "!!merge":
			if !c.merge(v, pattern, at, depth) {
				return false
			}
			continue
		case seen[k.Value]:
			c.problem(k, path, "the key stands twice")
		}
		seen[k.Value] = true
		c.lines[path] = k.Line
		if child, ok := c.child(k, pattern, path); ok && !c.walk(v, child, path, depth+1) {
			return false
		}
	}
	return true
}

// merge checks the mappings that a merge key brings in as if they stood here.
func (c *keyCheck) merge(v *yaml.Node, pattern, at string, depth int) bool {
	if v.Kind != yaml.SequenceNode {
		return c.walk(v, pattern, at, depth+1)
	}
	for _, item := range v.Content {
		if !c.walk(item, pattern, at, depth+1) {
			return false
		}
	}
	return true
}

// anything is the pattern of what is carried or ignored as a whole.
const anything = "…"

// child returns the pattern of a key, and false where it is refused.
func (c *keyCheck) child(k *yaml.Node, pattern, at string) (string, bool) {
	if open[pattern] || strings.HasPrefix(pattern, anything) {
		return anything, true
	}
	for _, name := range []string{k.Value, "*"} {
		if child := strings.TrimPrefix(pattern+"."+name, "."); keys[child] {
			return child, true
		}
	}
	child := strings.TrimPrefix(pattern+"."+k.Value, ".")
	if strings.HasPrefix(k.Value, "x-") {
		if !strings.HasPrefix(k.Value, "x-colony-") {
			return anything, true
		}
		c.problem(k, at, "Colony has no such extension; it has x-colony-health, for services")
		return "", false
	}
	reason := reasons[child]
	if reason == "" {
		reason = "Colony does not support this key"
		if siblings := c.siblings(pattern); len(siblings) > 0 && len(siblings) < 12 {
			reason += "; supported here: " + strings.Join(siblings, ", ")
		}
	}
	c.problem(k, at, "%s", reason)
	return "", false
}

// siblings returns the keys that the table has below a pattern.
func (c *keyCheck) siblings(pattern string) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if rest, ok := strings.CutPrefix("."+key, strings.TrimSuffix("."+pattern, ".")+"."); ok && !strings.ContainsAny(rest, ".[*") {
			all = append(all, rest)
		}
	}
	return all
}
