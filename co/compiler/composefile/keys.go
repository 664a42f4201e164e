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
services.*.domainname
services.*.oom_score_adj
services.*.container_name
services.*.ports
services.*.ports[].target
services.*.ports[].published
services.*.ports[].host_ip
services.*.ports[].protocol
services.*.ports[].mode
services.*.ports[].name
services.*.ports[].app_protocol
services.*.volumes
services.*.volumes[].type
services.*.volumes[].source
services.*.volumes[].target
services.*.volumes[].read_only
services.*.volumes[].consistency
services.*.volumes[].bind
services.*.volumes[].bind.create_host_path
services.*.volumes[].bind.propagation
services.*.volumes[].bind.selinux
services.*.volumes[].tmpfs
services.*.volumes[].tmpfs.size
services.*.volumes[].tmpfs.mode
services.*.volumes[].volume
services.*.volumes[].volume.nocopy
services.*.volumes[].volume.subpath
services.*.volumes[].volume.labels
services.*.volumes_from
services.*.tmpfs
services.*.configs
services.*.configs[].source
services.*.configs[].target
services.*.configs[].mode
services.*.configs[].uid
services.*.configs[].gid
services.*.devices
services.*.devices[].source
services.*.devices[].target
services.*.devices[].permissions
services.*.gpus
services.*.gpus[].capabilities
services.*.gpus[].count
services.*.gpus[].device_ids
services.*.gpus[].driver
services.*.cpus
services.*.cpu_shares
services.*.cpuset
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
services.*.deploy.restart_policy.delay
services.*.deploy.restart_policy.window
services.*.deploy.labels
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
services.*.networks.*.priority
services.*.networks.*.gw_priority
services.*.cap_add
services.*.cap_drop
services.*.privileged
services.*.read_only
services.*.stop_signal
services.*.stop_grace_period
services.*.labels
services.*.annotations
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
services.*.develop
services.*.pull_refresh_after
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
services.*.deploy.resources.reservations.devices
services.*.deploy.resources.reservations.devices[].capabilities
services.*.deploy.resources.reservations.devices[].count
services.*.deploy.resources.reservations.devices[].device_ids
services.*.deploy.resources.reservations.devices[].driver
services.*.security_opt
services.*.dns
services.*.dns_search
services.*.dns_opt
services.*.secrets
services.*.secrets[].source
services.*.secrets[].target
services.*.secrets[].mode
services.*.secrets[].uid
services.*.secrets[].gid
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
networks.*.ipam.driver
networks.*.ipam.options
networks.*.ipam.config
networks.*.ipam.config[].subnet
networks.*.ipam.config[].gateway
networks.*.ipam.config[].ip_range
networks.*.ipam.config[].aux_addresses
networks.*.labels
networks.*.enable_ipv4
networks.*.driver_opts
secrets
secrets.*
secrets.*.file
secrets.*.environment
secrets.*.name
secrets.*.labels
configs
configs.*
configs.*.file
configs.*.environment
configs.*.content
configs.*.name
configs.*.labels
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
services.*.annotations
services.*.develop
services.*.deploy.labels
services.*.volumes[].volume.labels
volumes.*.driver_opts
volumes.*.labels
networks.*.ipam.options
networks.*.ipam.config[].aux_addresses
networks.*.driver_opts
networks.*.labels
configs.*.labels
secrets.*.labels
`)

// Notes are warnings about keys that are accepted and come true in another way, or not.
var Notes = map[string]string{
	"services.*.deploy.restart_policy.delay":  "it is not used: the agent waits between restarts by its own backoff, from 1 s to 1 min",
	"services.*.deploy.restart_policy.window": "it is not used: the agent counts a start as good by the deployment's minHealthy",
	"services.*.networks.*.priority":          "it is not used: what leaves the node goes by the first network, by name, that is not internal",
	"services.*.networks.*.gw_priority":       "it is not used: what leaves the node goes by the first network, by name, that is not internal",
	"networks.*.driver_opts":                  "they are not used: the node sets its bridges up by itself",
	"networks.*.enable_ipv4":                  "it is not used: containers have IPv4 addresses alone",
}

// Reasons say why a key is refused, and what to write instead.
var Reasons = map[string]string{
	"services.*.build":                                           "images are not built on nodes, they come from a registry: build the image, push it to the CO's registry or another one, and name it in image",
	"services.*.volumes[].bind.recursive":                        "a bind has what the node has mounted below it: leave it out, and bind the directory that is meant",
	"services.*.volumes[].image":                                 "the files of an image are not mounted: copy them into a volume by a service that completes first, or put them into the image of this one",
	"services.*.deploy.placement":                                "nodes are chosen by the deployment's selector and its deviceConstraints",
	"services.*.deploy.endpoint_mode":                            "there is no virtual address: the name of a service gives the addresses of all its replicas; leave it out",
	"services.*.deploy.update_config":                            "updates and rollbacks follow the policy of the deployment: attempts, backoff, minHealthy and rollback",
	"services.*.deploy.rollback_config":                          "updates and rollbacks follow the policy of the deployment: attempts, backoff, minHealthy and rollback",
	"services.*.deploy.resources.reservations.devices[].options": "there are no options of a driver: the CDI file of the node says what a device has",
	"services.*.deploy.resources.reservations.generic_resources": "nodes are chosen by the deployment's selector: give the nodes that have the resource a label",
	"services.*.gpus[].options":                                  "there are no options of a driver: the CDI file of the node says what a device has",
	"secrets.*.external":                                         "the node has no store of secrets: use file with a file of the archive, or environment with a parameter",
	"secrets.*.driver":                                           "the node has no store of secrets: use file with a file of the archive, or environment with a parameter",
	"secrets.*.driver_opts":                                      "the node has no store of secrets: use file with a file of the archive, or environment with a parameter",
	"secrets.*.template_driver":                                  "a secret is delivered as it is: fill it in before, or use environment with a parameter",
	"configs.*.external":                                         "configs come from the archive: use file or content",
	"configs.*.template_driver":                                  "a config is delivered as it is: use content, in which ${NAME} is filled in",
	"networks.*.external.name":                                   "external is true or false in Compose files of today: write external: true, and name beside it",
	"volumes.*.external.name":                                    "external is true or false in Compose files of today: write external: true, and name beside it",
	"jobs":                                                       "an application is what keeps running: write a service with restart: \"no\", which is complete when it exits with 0",
	"models":                                                     "nodes have no runner of models: write a service that serves the model, and name its address in environment",
	"services.*.models":                                          "nodes have no runner of models: write a service that serves the model, and name its address in environment",
	"services.*.provider":                                        "nodes run containers alone: write a service with an image in its place",
	"services.*.blkio_config":                                    "disks are not divided among containers: leave it out, and limit what the program writes in its configuration",
	"services.*.cgroup":                                          "each container has its own control group, which is the root of what it sees: leave it out",
	"services.*.cgroup_parent":                                   "the agent chooses the control groups: leave it out, and give limits with cpus, mem_limit and pids_limit",
	"services.*.cpu_count":                                       "it is of Windows: use cpus",
	"services.*.cpu_percent":                                     "it is of Windows: use cpus",
	"services.*.cpu_period":                                      "use cpus, which is the quota divided by the period",
	"services.*.cpu_quota":                                       "use cpus, which is the quota divided by the period",
	"services.*.cpu_rt_period":                                   "time of the real-time scheduler is not divided among containers: leave it out; a program may take a priority with cap_add: [SYS_NICE] and ulimits.rtprio",
	"services.*.cpu_rt_runtime":                                  "time of the real-time scheduler is not divided among containers: leave it out; a program may take a priority with cap_add: [SYS_NICE] and ulimits.rtprio",
	"services.*.credential_spec":                                 "it is of Windows: leave it out",
	"services.*.isolation":                                       "it is of Windows: leave it out",
	"services.*.device_cgroup_rules":                             "name the devices under devices, in which a device that was plugged in anew is found when the container starts again; privileged gives all",
	"services.*.env_file[].format":                               "the files are in the format of .env: leave it out, quote values with '', and write $$ for a $",
	"services.*.external_links":                                  "a deployment reaches no container of another one by name: publish a port there, and name it by extra_hosts with host-gateway",
	"services.*.label_file":                                      "write the labels under labels",
	"services.*.mac_address":                                     "the node gives the interfaces of containers their addresses: leave it out; a program that is licensed by one runs under network_mode: host",
	"services.*.networks.*.mac_address":                          "the node gives the interfaces of containers their addresses: leave it out; a program that is licensed by one runs under network_mode: host",
	"services.*.networks.*.interface_name":                       "the interfaces are eth0, eth1 and so on, by the names of the networks: let the program listen on all, or on the address of its name",
	"services.*.networks.*.link_local_ips":                       "containers have one address on each network, which the node chooses: leave it out",
	"services.*.networks.*.driver_opts":                          "the node sets interfaces up by itself: leave it out; parameters of the kernel are set with sysctls",
	"services.*.networks.*.use_service_name_alias":               "a service is found by its name on each of its networks: leave it out",
	"services.*.mem_swappiness":                                  "control groups of version 2 have none: use memswap_limit, equal to mem_limit for no swap",
	"services.*.oom_kill_disable":                                "a container without memory would stand still: leave it out, and use oom_score_adj to have others ended first",
	"services.*.post_start":                                      "write a service that does it, with depends_on and service_healthy",
	"services.*.pre_start":                                       "write a service that does it, for which this one waits with service_completed_successfully",
	"services.*.pre_stop":                                        "let the program do it when it gets stop_signal, within stop_grace_period",
	"services.*.runtime":                                         "nodes run containers with runc: leave it out",
	"services.*.storage_opt":                                     "the root file system has no quota: use read_only with volumes, and tmpfs with a size",
	"services.*.umask":                                           "let the program, or a shell before it, set the umask: command: sh -c 'umask 077 && exec program'",
	"services.*.use_api_socket":                                  "nodes run containerd and have no socket of Docker's API: leave it out",
	"services.*.uts":                                             "use network_mode: host without hostname, under which a container has the name of the node",
}

// PathSet returns the words of a text as a set.
func PathSet(lines string) map[string]bool {
	set := map[string]bool{}
	for line := range strings.FieldsSeq(lines) {
		set[line] = true
	}
	return set
}
