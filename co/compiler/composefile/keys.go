package composefile

import "strings"

// Keys are the keys that a compose.yaml may have, as paths: * stands for any
// name, [] for an item of a list. A test holds them and docs/compose.md together.
var Keys = PathSet(`
name
version
include
include[].path
include[].project_directory
include[].env_file
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
services.*.volumes[].tmpfs.mode
services.*.volumes[].volume
services.*.volumes[].volume.nocopy
services.*.volumes_from
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
services.*.memswap_limit
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
services.*.init
services.*.tty
services.*.stdin_open
services.*.shm_size
services.*.ulimits
services.*.ulimits.*
services.*.ulimits.*.soft
services.*.ulimits.*.hard
services.*.pid
services.*.ipc
services.*.userns_mode
services.*.platform
services.*.mem_reservation
services.*.deploy.resources.reservations
services.*.deploy.resources.reservations.cpus
services.*.deploy.resources.reservations.memory
services.*.security_opt
services.*.dns
services.*.dns_search
services.*.dns_opt
services.*.secrets
services.*.secrets[].source
services.*.secrets[].target
services.*.secrets[].mode
services.*.extends
services.*.extends.service
services.*.extends.file
volumes
volumes.*
volumes.*.driver
volumes.*.driver_opts
volumes.*.name
volumes.*.external
volumes.*.labels
networks
networks.*
networks.*.driver
networks.*.name
networks.*.external
networks.*.attachable
networks.*.enable_ipv6
networks.*.internal
networks.*.ipam
networks.*.labels
secrets
secrets.*
secrets.*.file
secrets.*.environment
configs
configs.*
configs.*.file
configs.*.environment
configs.*.content
`)

// Open are the keys whose mappings hold names that the author chooses, and no
// keys of Compose below them.
var Open = PathSet(`
services.*.environment
services.*.labels
services.*.extra_hosts
services.*.sysctls
services.*.x-colony-health
services.*.logging.options
volumes.*.driver_opts
volumes.*.labels
networks.*.ipam
networks.*.labels
`)

// Reasons say why a key is refused, where there is more to say than that it is
// not supported.
var Reasons = map[string]string{
	"services.*.build":                                 "images are not built on nodes, they come from a registry: build the image, push it to the CO's registry or another one, and name it in image",
	"services.*.volumes[].volume.subpath":              "a link in the volume could lead out of it: mount the volume, and name the path in the program's configuration",
	"services.*.deploy.placement":                      "nodes are chosen by the deployment's selector and its deviceConstraints",
	"services.*.deploy.update_config":                  "updates and rollbacks follow the policy of the deployment",
	"services.*.deploy.rollback_config":                "updates and rollbacks follow the policy of the deployment",
	"services.*.deploy.resources.reservations.devices": "name the device of the node under devices, such as /dev/dri/renderD128",
	"services.*.gpus":                                  "name the device of the node under devices, such as /dev/dri/renderD128",
	"secrets.*.external":                               "the node has no store of secrets: use file with a file of the archive, or environment with a parameter",
	"services.*.deploy.restart_policy.delay":           "the agent waits between restarts by its own backoff",
	"services.*.deploy.restart_policy.window":          "the agent waits between restarts by its own backoff",
	"configs.*.external":                               "configs come from the archive: use file or content",
}

// PathSet returns the words of a text as a set.
func PathSet(lines string) map[string]bool {
	set := map[string]bool{}
	for line := range strings.FieldsSeq(lines) {
		set[line] = true
	}
	return set
}
