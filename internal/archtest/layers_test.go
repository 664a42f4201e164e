package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	pathpkg "path"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/colonyfleet/colony"
	root   = "../.."
)

// A layer may import only lower layers. Two packages of one layer never import
// each other, with two exceptions: the packages of the contract form one vocabulary,
// and a package may import one whose folder lies in its own, or in whose folder it
// lies: they are one wing, such as co/db and the stores in it.
type layer int

const (
	contract layer = iota // protocol, margo: the wire and the words
	kernel                // internal/..., migrations: machinery without a domain word
	domain                // what a tier knows, and its ports; no I/O
	logic                 // what a tier decides: state and time in, actions out
	adapter               // one package per outside thing: database, engine, disk
	wiring                // co, lo, en: where adapters meet logic
	launcher              // up: the tiers as processes of one machine
	command               // cli: what a person types
	program               // cmd/...: main packages
)

var names = [...]string{"contract", "kernel", "domain", "logic", "adapter", "wiring", "launcher", "command", "program"}

// packages lists every package of the module. A package that is not listed, or
// is listed and does not exist, fails the test: this table is the map.
var packages = map[string]layer{
	"protocol":                   contract,
	"protocol/lifecycle":         contract,
	"protocol/command":           contract,
	"protocol/schematest":        contract, // of the tests of messages
	"protocol/topic":             contract,
	"protocol/topic/topictest":   contract,
	"protocol/datarule":          contract,
	"protocol/device":            contract,
	"protocol/items":             contract,
	"protocol/dictionary":        contract,
	"margo/rawyaml":              contract,
	"margo/document":             contract,
	"margo/v1rc3":                contract,
	"margo/v1rc3/eligible":       contract,
	"protocol/sign":              contract,
	"protocol/restriction":       contract,
	"protocol/maintenance":       contract,
	"protocol/session":           contract,
	"protocol/siteset":           contract,
	"protocol/sign/signtest":     contract,
	"protocol/stream":            contract,
	"protocol/command/cotime":    contract,
	"protocol/wiretest":          contract, // of the tests of all tiers
	"protocol/stream/streamtest": contract,

	"internal/allowance":         kernel,
	"internal/atomicfile":        kernel,
	"internal/begun":             kernel,
	"internal/bridgenet":         kernel,
	"internal/configfile":        kernel,
	"internal/misspelt":          kernel,
	"internal/disk":              kernel,
	"internal/disk/simdisk":      kernel,
	"internal/doctor":            kernel,
	"internal/childproc":         kernel,
	"internal/cgroupusage":       kernel,
	"internal/doctor/host":       kernel,
	"internal/filelock":          kernel,
	"internal/freeport":          kernel,
	"internal/hostclock":         kernel,
	"internal/httpserver":        kernel,
	"internal/hostkernel":        kernel,
	"internal/impair":            kernel,
	"internal/memnet":            kernel,
	"internal/metricstest":       kernel,
	"internal/netaddr":           kernel,
	"internal/netns":             kernel,
	"internal/notify":            kernel,
	"internal/containerdtest":    kernel,
	"internal/portforward":       kernel,
	"internal/pgcost":            kernel,
	"internal/pgdb":              kernel,
	"internal/pgtest":            kernel,
	"internal/doctable":          kernel,
	"internal/privatecontainerd": kernel,
	"internal/privatepg":         kernel,
	"internal/pulltally":         kernel,
	"internal/random":            kernel,
	"internal/logfile":           kernel,
	"internal/shims":             kernel,
	"internal/smalldisk":         kernel,
	"internal/inplace":           kernel,
	"internal/keyfile":           kernel,
	"internal/keylock":           kernel,
	"internal/nameserver":        kernel,
	"internal/oidctest":          domain, // of tests
	"internal/grpcdeadline":      kernel,
	"internal/registryhosts":     kernel,
	"internal/registryauth":      kernel,
	"internal/retry/relisten":    kernel,
	"internal/retry":             kernel,
	"internal/recordlog":         kernel,
	"internal/refusals":          kernel,
	"internal/statefile":         kernel,
	"internal/stopper":           kernel,
	"internal/testpart":          kernel,
	"internal/descriptors":       kernel,
	"internal/mosquittotest":     kernel,
	"internal/s3test":            kernel,
	"internal/testproc":          kernel,
	"internal/tlstest":           kernel,
	"internal/tpmtest":           kernel, // of the tests of what keeps keys in a TPM
	"internal/trailer":           kernel,
	"migrations":                 kernel,

	"identity":              contract,
	"identity/identitytest": contract, // of the tests of all tiers
	"identity/enrol":        adapter,
	"identity/https":        adapter,
	"identity/store":        adapter,
	"identity/tpm":          kernel,
	"identity/revocation":   adapter,

	"broker/admin":               adapter,
	"broker/answer":              logic,
	"broker/devices":             logic,
	"broker/door":                adapter,
	"broker/wills":               adapter,
	"broker/fifo":                domain,
	"broker/filter":              domain,
	"broker/packet":              domain,
	"broker/access":              logic,
	"broker/inflight":            logic,
	"broker/lasting":             adapter,
	"broker/layers":              domain,
	"broker/limits":              logic,
	"broker/message":             adapter,
	"broker/metrics":             adapter,
	"broker/peers":               logic,
	"broker/reason":              logic,
	"broker/quota":               logic,
	"broker/routing":             adapter,
	"broker/retained":            logic,
	"broker/sessions/state":      logic,
	"broker/sessions/sessionlog": adapter,
	"broker/sessions/bounds":     domain,
	"broker/sessions/ranking":    domain,
	"broker/sessions":            adapter,
	"broker/topictree":           logic,
	"broker/term":                logic,
	"broker/turns":               domain,
	"broker/client":              adapter,
	"broker/client/clienttest":   adapter,
	"broker/listen":              adapter,
	"broker/transport":           adapter,
	"broker/websocket":           adapter,
	"broker/external":            adapter,
	"broker":                     adapter,

	"co/fleet":    domain,
	"co/compiler": logic, "co/compiler/addresses": logic, "co/compiler/composearchive": logic, "co/compiler/composefile": logic, "co/compiler/devicespec": logic, "co/compiler/diagnosis": logic, "co/compiler/examination": logic, "co/compiler/fault": logic, "co/compiler/interpolate": logic, "co/compiler/mounting": logic, "co/compiler/mountspec": logic, "co/compiler/packagecheck": logic, "co/compiler/pinning": logic, "co/compiler/pins": logic, "co/compiler/pruning": logic, "co/compiler/servicecheck": logic, "co/compiler/topology": logic,
	"co/command":                adapter,
	"en/engine/logs/crash":      logic,
	"co/repo/git/leftlocks":     adapter,
	"co/command/live":           logic,
	"internal/duplex":           domain,
	"co/session":                logic,
	"co/session/recording":      domain,
	"co/data/live":              logic,
	"co/repo/sitefile":          logic,
	"co/repo/intent":            logic,
	"co/repo/layout":            logic,
	"co/repo/address":           logic,
	"co/access":                 domain,
	"co/admission":              adapter,
	"co/access/forwarded":       logic,
	"co/access/limit":           logic,
	"co/access/oidc":            adapter,
	"co/access/token":           adapter,
	"co/audit":                  domain,
	"co/audit/keeper":           adapter,
	"co/keys":                   adapter,
	"co/lint":                   adapter,
	"co/packaging":              adapter,
	"co/projection":             logic,
	"co/proposal":               logic,
	"co/damage":                 adapter,
	"co/rollout":                logic,
	"co/rollout/fleetfile":      logic,
	"co/rollout/preview":        logic,
	"co/rollout/explain":        logic,
	"co/rollout/gates":          adapter,
	"co/rollout/driver":         adapter,
	"co/webhook":                adapter,
	"co/api":                    adapter,
	"co/api/events":             adapter,
	"co/api/feed":               adapter,
	"co/api/form":               logic,
	"co/api/policy":             logic,
	"co/api/proposals":          adapter,
	"co/api/rollouts":           adapter,
	"co/api/problem":            logic,
	"co/api/security":           logic,
	"co/api/sitedata":           adapter,
	"co/api/sitegroups":         adapter,
	"co/api/within":             logic,
	"co/catalog":                adapter,
	"co/db":                     adapter,
	"co/db/dbtest":              adapter,
	"co/desired":                adapter,
	"co/data/downlink":          adapter,
	"co/data/remotewrite":       adapter,
	"co/repo/git":               adapter,
	"co/repo/git/bounded":       logic,
	"co/repo/git/lastchange":    logic,
	"co/repo/git/names":         logic,
	"co/repo/git/program":       adapter,
	"co/repo/git/removed":       logic,
	"co/repo/git/progress":      logic,
	"co/repo/git/since":         logic,
	"co/inbound":                adapter,
	"co/ingest":                 adapter,
	"co/presence":               adapter,
	"co/data/exchange":          adapter,
	"co/registry":               adapter,
	"co/registry/archive":       logic,
	"co/registry/artifact":      domain,
	"co/registry/encrypted":     adapter,
	"co/registry/failure":       adapter,
	"co/registry/image":         adapter,
	"co/registry/graph":         logic,
	"co/registry/ociclient":     adapter,
	"co/registry/target":        domain,
	"co/registry/inprocess":     adapter,
	"co/registry/paging":        logic,
	"co/registry/uses":          adapter,
	"co/db/fleet":               adapter,
	"co/db/data":                adapter,
	"co/db/webhook":             adapter,
	"co/db/sessions":            adapter,
	"co":                        wiring,
	"co/registry/storage":       domain,
	"co/registry/storage/files": adapter, "co/registry/storage/objects": adapter, "co/registry/storage/storagetest": adapter,

	"co/db/fleet/desired":   adapter,
	"co/db/fleet/journal":   adapter,
	"co/db/fleet/upkeep":    adapter,
	"co/db/fleet/lists":     adapter,
	"co/db/fleet/proposals": adapter,
	"co/db/fleet/rollouts":  adapter,
	"co/db/fleet/versions":  adapter,
	"co/db/identity":        adapter,
	"co/db/access":          adapter,
	"co/db/audit":           adapter,
	"co/db/commands":        adapter,
	"co/identity":           adapter,
	"co/api/identity":       adapter,
	"co/api/gate":           adapter,
	"co/api/tokens":         adapter,
	"co/api/audit":          adapter,
	"co/api/commands":       adapter, "co/api/commands/logstream": adapter, "co/api/commands/socket": adapter,
	"co/api/images": adapter,
	"co/api/specs":  adapter,
	"co/gauges":     adapter,
	"co/timing":     adapter,
	"co/backup":     adapter,

	"lo/nodes":             domain,
	"lo/nodes/nodestatus":  domain,
	"lo/window":            logic,
	"lo/control":           adapter,
	"lo/control/rulefault": adapter,
	"lo/control/metrics":   adapter,
	"lo/control/trim":      adapter,
	"lo/control/view":      adapter,
	"lo/identity":          adapter,
	"lo/api":               adapter,
	"lo/api/local":         adapter,
	"lo/reconciler":        logic,
	"lo/rivals":            logic,
	"placement":            logic,
	"placement/demand":     domain,
	"lo/data/sampler":      logic,
	"lo/clients":           adapter,
	"lo/cache":             adapter,
	"lo/desired":           adapter,
	"lo/data/downlink":     adapter,
	"lo/data/retained":     adapter,
	"lo/journal":           adapter,
	"lo/journal/ondisk":    adapter,
	"lo/nodes/store":       adapter,
	"lo/uplink":            adapter,
	"lo/uplink/pace":       adapter,
	"lo/data":              adapter,
	"lo/data/delivery":     adapter,
	"lo/link":              adapter,
	"lo":                   wiring,

	"en/engine":             domain,
	"en/engine/logs":        domain,
	"en/engine/logs/ondisk": adapter, "en/engine/logs/ondisk/part": adapter,
	"en/engine/enginetest": adapter,
	"en/plan":              logic,
	"en/engine/containerd": adapter, "en/engine/containerd/followed": adapter, "en/engine/containerd/idfile": adapter, "en/engine/containerd/images": adapter, "en/engine/containerd/leases": adapter, "en/engine/containerd/leftover": adapter, "en/engine/containerd/marks": adapter, "en/engine/containerd/names": adapter, "en/engine/containerd/network": adapter, "en/engine/containerd/programs": adapter, "en/engine/containerd/runspec": adapter, "en/engine/containerd/volumes": adapter, "en/engine/containerd/volumes/seed": adapter,
	"en/plan/trust":     logic,
	"en/engine/engines": adapter,
	"en/engine/memory":  adapter,
	"en/inventory":      adapter,
	"en/identity":       adapter,
	"en/probe":          adapter,
	"en/metrics":        adapter,
	"en/agent":          adapter,
	"en/agent/volumes":  adapter,
	"en/link":           adapter,
	"en/state":          adapter,
	"en":                wiring,

	"deploy":         adapter,
	"deploy/grafana": adapter,
	"lo/command":     adapter, "lo/command/members": logic, "lo/command/live": adapter, "lo/command/store": adapter,
	"en/command": adapter, "en/command/once": logic, "en/command/store": adapter, "en/plan/subject": logic,
	"en/command/kinds/restart": adapter, "en/command/kinds/probe": adapter, "en/command/kinds/pull": adapter,
	"en/command/kinds/inventory": adapter, "en/command/kinds/netcheck": adapter, "en/command/kinds/logs": adapter, "en/command/kinds/exec": adapter,
	"en/command/kinds/diagnostics": adapter, "en/command/kinds/files": adapter, "en/command/kinds/forward": adapter, "en/command/archive": domain, "en/command/archive/archivetest": domain,
	"en/command/segments": logic, "en/command/segments/segmentstest": adapter,

	"sim":       wiring,
	"sim/fleet": wiring,

	"up":            launcher,
	"cli":           command,
	"cli/client":    adapter,
	"cli/output":    adapter,
	"cli/command":   wiring,
	"cli/backups":   command,
	"cli/proposals": command,
	"cli/rollouts":  command,
	"cli/sessions":  command,
	"cli/removals":  command,
	"cli/doctor":    command, "cli/doctor/node": command,
	"cli/tiers":    command,
	"cli/verdict":  command,
	"cli/apps":     command,
	"cli/data":     command,
	"cli/devices":  command,
	"cli/groups":   command,
	"cli/images":   command,
	"cli/keys":     command,
	"cli/identity": command,
	"cli/login":    command,
	"cli/signin":   adapter,
	"cli/audit":    command, "cli/tokens": command,
	"cli/commands": command, "cli/logs": command, "cli/commands/local": command,
	"cmd/colony":    program,
	"cmd/colony-en": program, "cmd/colony-init": program,
	"e2e":               program,
	"bench/link/ledger": kernel, "bench/link/wire": kernel, "bench/link/process": kernel, "bench/machine": kernel, "bench/shortrun": kernel,
	"bench/link": program, "bench/broker": program, "bench/co": program, "bench/mosquitto": program,
	"e2e/identity": program, "e2e/link": program, "e2e/semantics": program, "e2e/down": program, "e2e/campaign": program, "e2e/people": program,
	"e2e/command":           program,
	"examples/images/hello": program, "examples/images/faulty": program,
	"internal/archtest": program,
}

// confined names the only packages that may import a third-party module: its tests included. A
// module that is not named here must not be imported.
var confined = map[string][]string{
	"github.com/fxamacker/cbor/v2":            {"protocol", "protocol/command", "protocol/schematest", "protocol/sign"},
	"go.yaml.in/yaml/v4":                      {"cli/command", "cli/output", "co/access/oidc", "co/compiler", "co/compiler/composefile", "co/packaging", "co/repo/sitefile", "co/rollout/fleetfile", "internal/configfile", "margo/document", "margo/rawyaml", "margo/v1rc3"},
	"github.com/mochi-mqtt/server/v2":         {"broker", "broker/answer", "broker/message", "broker/packet", "broker/reason", "broker/routing", "broker/wills"},
	"github.com/eclipse/paho.golang":          {"bench/link", "broker/client"},
	"github.com/gorilla/websocket":            {"broker", "broker/client", "broker/websocket", "cli/client", "cli/sessions", "co/api/commands", "co/api/commands/socket"},
	"github.com/prometheus/client_golang":     {"broker", "broker/external", "broker/metrics", "co", "co/access/oidc", "co/api/gate", "co/command", "co/command/live", "co/damage", "co/data/remotewrite", "co/db", "co/db/data", "co/db/fleet", "co/db/fleet/journal", "co/db/fleet/upkeep", "co/gauges", "co/identity", "co/ingest", "co/session", "co/timing", "co/webhook", "internal/metricstest", "lo", "lo/command", "lo/command/live", "lo/control", "lo/control/metrics", "lo/data", "lo/identity", "lo/uplink"},
	"github.com/jackc/pgx/v5":                 {"bench/co", "co/backup", "co/db", "co/db/access", "co/db/audit", "co/db/commands", "co/db/data", "co/db/dbtest", "co/db/fleet", "co/db/fleet/desired", "co/db/fleet/journal", "co/db/fleet/lists", "co/db/fleet/proposals", "co/db/fleet/rollouts", "co/db/fleet/upkeep", "co/db/fleet/versions", "co/db/identity", "co/db/sessions", "co/db/webhook", "internal/pgcost", "internal/pgdb", "internal/pgtest", "migrations"},
	"github.com/Masterminds/semver/v3":        {"co/fleet", "margo/v1rc3"},
	"github.com/jackc/tern/v2":                {"migrations"},
	"github.com/containerd":                   {"en/engine/containerd", "en/engine/containerd/images", "en/engine/containerd/leases", "en/engine/containerd/programs", "en/engine/containerd/runspec", "en/engine/containerd/volumes", "internal/pulltally", "internal/registryhosts"},
	"github.com/containernetworking/cni":      {"internal/bridgenet"},
	"github.com/moby/sys":                     {"co/compiler/servicecheck", "en/engine/containerd", "en/engine/containerd/runspec", "en/engine/containerd/volumes"},
	"github.com/opencontainers":               {"co/compiler/servicecheck", "co/registry", "en/engine/containerd", "en/engine/containerd/images", "en/engine/containerd/programs", "en/engine/containerd/runspec", "en/engine/containerd/volumes", "internal/pulltally"},
	"oras.land/oras-go/v2":                    {"co/registry"},                                         // its tests
	"github.com/santhosh-tekuri/jsonschema":   {"co/compiler", "co/compiler/diagnosis", "margo/v1rc3"}, // but for diagnosis, their tests
	"github.com/sirupsen/logrus":              {"cmd/colony", "en/engine/containerd"},
	"google.golang.org/grpc":                  {"en/engine/containerd", "internal/grpcdeadline"},
	"golang.org/x/crypto":                     {"broker/devices", "cli/devices"},
	"golang.org/x/net":                        {"en/command/kinds/netcheck", "identity/enrol", "internal/httpserver", "internal/nameserver", "internal/portforward"},
	"golang.org/x/sys":                        {"en/engine/containerd/programs", "co/repo/git/leftlocks", "en/command/kinds/diagnostics", "en/command/kinds/files", "en/engine/containerd/runspec", "internal/atomicfile", "internal/doctor/host", "internal/hostclock", "internal/hostkernel", "internal/netns"},
	"github.com/golang-jwt/jwt/v5":            {"co/access/token"},
	"github.com/coreos/go-oidc/v3":            {"cli/signin", "co/access/oidc"},
	"golang.org/x/term":                       {"cli/sessions"},
	"golang.org/x/oauth2":                     {"cli/signin"},
	"github.com/go-jose/go-jose/v4":           {"co/access/oidc", "internal/oidctest"},
	"github.com/google/go-cmp":                {"co/registry/storage/storagetest", "en/engine/enginetest"},
	"github.com/google/go-containerregistry":  {"co/registry", "co/registry/failure", "co/registry/image", "co/registry/ociclient", "co/registry/target"},
	"github.com/minio/minio-go/v7":            {"co/registry/storage/objects"},
	"github.com/distribution/reference":       {"co/compiler"},
	"github.com/compose-spec/compose-go/v2":   {"co/compiler", "co/compiler/addresses", "co/compiler/composefile", "co/compiler/devicespec", "co/compiler/diagnosis", "co/compiler/interpolate", "co/compiler/mounting", "co/compiler/mountspec", "co/compiler/servicecheck", "co/compiler/topology", "co/packaging"},
	"github.com/danielgtaylor/huma/v2":        {"co/api", "co/api/audit", "co/api/commands", "co/api/events", "co/api/form", "co/api/identity", "co/api/images", "co/api/problem", "co/api/proposals", "co/api/rollouts", "co/api/security", "co/api/sitedata", "co/api/sitegroups", "co/api/specs", "co/api/tokens"},
	"github.com/klauspost/compress":           {"co/data/remotewrite", "protocol/dictionary", "protocol/stream"},
	"github.com/shirou/gopsutil/v4":           {"en/inventory"},
	"golang.org/x/time":                       {"broker", "broker/listen", "broker/peers", "co/access/limit", "internal/allowance", "lo/uplink"},
	"github.com/spf13/cobra":                  {"cli", "cli/apps", "cli/audit", "cli/backups", "cli/command", "cli/commands", "cli/commands/local", "cli/data", "cli/devices", "cli/doctor", "cli/groups", "cli/identity", "cli/images", "cli/keys", "cli/login", "cli/logs", "cli/proposals", "cli/removals", "cli/rollouts", "cli/sessions", "cli/tiers", "cli/tokens"},
	"go.uber.org/goleak":                      {"internal/pgtest"},
	"golang.org/x/sync":                       {"bench/broker", "co/data/remotewrite", "co/desired"},
	"google.golang.org/protobuf":              {"co/data/remotewrite"},
	"tags.cncf.io/container-device-interface": {"co/compiler/devicespec", "en/engine/containerd/runspec"},
	"github.com/veraison/go-cose":             {"protocol/sign"},
	"github.com/google/go-tpm":                {"identity/tpm"},
}

// also lists the imports that break the order, each with its reason. One that is not used any more
// fails the test.
var also = map[[2]string]string{
	{"internal/bridgenet", "internal/filelock"}:                      "a plugin locks the addresses that it gives",
	{"internal/bridgenet", "internal/disk"}:                          "what is in the place of a reservation is read without a wait",
	{"internal/bridgenet", "internal/portforward"}:                   "a port is published on IPv6 by that",
	{"internal/portforward", "internal/retry"}:                       "a wait that ends with the port",
	{"internal/bridgenet", "internal/netns"}:                         "a network is attached to a namespace",
	{"internal/bridgenet", "internal/statefile"}:                     "which deployment has which network must survive a crash",
	{"internal/keyfile", "internal/atomicfile"}:                      "a key that is made is whole, or not there",
	{"internal/keyfile", "internal/disk"}:                            "a key is a file of a file system",
	{"internal/keyfile", "internal/filelock"}:                        "two that need a key may both be the first",
	{"internal/disk", "internal/filelock"}:                           "a lock is a file of a file system",
	{"internal/disk", "internal/notify"}:                             "an operation that finds no room wakes who looks after the disk",
	{"internal/disk/simdisk", "internal/disk"}:                       "it is such a file system",
	{"internal/disk/simdisk", "internal/filelock"}:                   "it has the error for what is locked",
	{"internal/atomicfile", "internal/disk"}:                         "a file is replaced on any file system",
	{"internal/begun", "internal/disk"}:                              "it looks at any file system",
	{"internal/begun", "internal/statefile"}:                         "the note is a state file",
	{"internal/statefile", "internal/disk"}:                          "a state file is on any file system",
	{"internal/recordlog", "internal/disk"}:                          "a log is on any file system",
	{"internal/doctor/host", "internal/hostclock"}:                   "whether the clock is in step is asked in one place",
	{"internal/doctor/host", "internal/hostkernel"}:                  "what the kernel can do is asked in one place",
	{"internal/statefile", "internal/atomicfile"}:                    "a state file is replaced whole",
	{"internal/recordlog", "internal/atomicfile"}:                    "a log without history replaces one that has it",
	{"internal/recordlog", "internal/statefile"}:                     "one identity, one way to set damage aside, one error for a later format",
	{"internal/privatecontainerd", "internal/filelock"}:              "one daemon for one directory",
	{"internal/privatepg", "internal/filelock"}:                      "one server for one directory",
	{"internal/memnet", "internal/notify"}:                           "a cut of a path ends the waits of its connections",
	{"internal/impair", "internal/notify"}:                           "a change of the link ends the waits of all its connections",
	{"internal/impair", "internal/retry"}:                            "a wait that ends with the proxy",
	{"internal/pgdb", "internal/retry"}:                              "a database that is away is tried again",
	{"internal/privatepg", "internal/retry"}:                         "a server that ends at once is started again",
	{"internal/pgtest", "internal/privatepg"}:                        "a test database is a private one",
	{"internal/privatecontainerd", "internal/childproc"}:             "its server ends with this process",
	{"internal/privatepg", "internal/childproc"}:                     "its server ends with this process",
	{"internal/childproc", "internal/retry"}:                         "a wait that ends with the program",
	{"bench/link/process", "internal/childproc"}:                     "a program of a benchmark ends with it",
	{"internal/testpart", "internal/logfile"}:                        "the end of a log is shown of a part that fails",
	{"internal/testproc", "internal/childproc"}:                      "a program of a test ends with it",
	{"internal/containerdtest", "internal/privatecontainerd"}:        "a test containerd is a private one",
	{"internal/httpserver", "internal/netaddr"}:                      "of an IPv6 network all addresses count together",
	{"internal/httpserver", "internal/refusals"}:                     "what its clients cause is bounded in the log",
	{"internal/configfile", "internal/misspelt"}:                     "a key that there is none of was meant to be another one",
	{"internal/httpserver", "internal/descriptors"}:                  "clients may have a part of what the process has",
	{"internal/s3test", "internal/freeport"}:                         "it listens where nobody else does",
	{"internal/s3test", "internal/testpart"}:                         "it waits as other tests do",
	{"internal/s3test", "internal/testproc"}:                         "it is a program of a test",
	{"internal/mosquittotest", "internal/freeport"}:                  "it listens where nobody else does",
	{"internal/mosquittotest", "internal/testpart"}:                  "it waits as other tests do",
	{"internal/mosquittotest", "internal/testproc"}:                  "it is a program of a test",
	{"internal/tpmtest", "internal/testpart"}:                        "it waits as other tests do",
	{"internal/tpmtest", "internal/testproc"}:                        "it is a program of a test",
	{"en/link", "broker/client"}:                                     "it speaks MQTT with the LO",
	{"en/engine/engines", "en/engine/containerd"}:                    "it chooses among the engines",
	{"en/engine/containerd/images", "en/engine/containerd/leftover"}: "what is in the way of an image is removed",
	{"en/engine/containerd/network", "en/engine/containerd/names"}:   "what a network lost of a container's names is written anew",
	{"en/engine/containerd", "en/engine/logs/ondisk"}:                "its shims write to files that are read and bounded there",
	{"co/access/oidc", "co/access/token"}:                            "that a token has ended is one error",
	{"co/api/gate", "co/access/token"}:                               "that a token has ended is one error",
	{"co/api/form", "co/api/problem"}:                                "what a path does not name is a problem of the request",
	{"co/api/events", "co/api/feed"}:                                 "it streams events",
	{"co/api/sitedata", "co/api/feed"}:                               "its streams are written like those of events",
	{"co/db/fleet/desired", "co/db/fleet/proposals"}:                 "a desired state is recorded together with the proposals of what it holds",
	{"co/rollout/driver", "co/desired"}:                              "it adds to the snapshot of the repo what fleet deployments expand to",
	{"co/rollout/driver", "co/db/fleet/rollouts"}:                    "a revision is recorded with its sites",
	{"co/compiler/mounting", "co/compiler/composearchive"}:           "files of the archive are mounted",
	{"co/compiler/mounting", "co/compiler/interpolate"}:              "the text of a mount may have variables",
	{"co/compiler/mounting", "co/compiler/mountspec"}:                "the rules for one mount",
	{"co/proposal", "placement"}:                                     "a change waits that would have a deployment run nowhere",
	{"co/rollout/preview", "co/proposal"}:                            "it says what would wait for a person",
	{"co/rollout/preview", "placement"}:                              "it says which nodes would be chosen",
	{"co/rollout/explain", "co/rollout/fleetfile"}:                   "it says what a file of a fleet deployment says of a site",
	{"co/rollout/explain", "co/repo/intent"}:                         "it names the file of a site",
	{"co/repo/layout", "co/repo/sitefile"}:                           "the paths of files are where they are read",
	{"co/repo/layout", "co/rollout/fleetfile"}:                       "the paths of files are where they are read",
	{"co/rollout/fleetfile", "co/repo/intent"}:                       "what a site gets is what a person would have asked for there",
	{"broker/client/clienttest", "broker/client"}:                    "it connects such clients",
	{"identity/https", "identity/enrol"}:                             "a dial is the same for both",
	{"identity/enrol", "identity/store"}:                             "what a machine gets is stored under the names of its store",
	{"co/identity", "identity/store"}:                                "the CO's own keys and certificates",
	{"en/identity", "identity/enrol"}:                                "the node enrols",
	{"en/identity", "identity/revocation"}:                           "the list of revoked keys, as a node has it",
	{"en/identity", "identity/store"}:                                "the node's own key and certificate",
	{"en/identity", "broker/client"}:                                 "what the client of the LO's broker asks about certificates",
	{"co/backup", "co/repo/git"}:                                     "a deployments repo of this machine is saved as a bundle",
	{"broker/message", "broker/client"}:                              "the broker's owner has the words of the client for a message",
	{"broker/door", "broker/listen"}:                                 "it opens listeners",
	{"broker/door", "broker/metrics"}:                                "whom there is no room for is counted where it happens",
	{"broker/wills", "broker/message"}:                               "a last will is a message",
	{"broker/wills", "broker/metrics"}:                               "last wills are counted where they are sent",
	{"broker/wills", "broker/routing"}:                               "last wills are routed",
	{"broker/wills", "broker/sessions"}:                              "one with a delay is part of a session",
	{"broker/wills", "broker/transport"}:                             "a last will waits for its subscribers",
	{"broker/routing", "broker/client"}:                              "its owner gets a message in the words of the client",
	{"broker/lasting", "broker/metrics"}:                             "what expires is counted where it happens",
	{"broker/lasting", "broker/routing"}:                             "stored sessions subscribe",
	{"broker/lasting", "broker/sessions"}:                            "it adds to stored sessions who subscribes for them",
	{"broker/routing", "broker/message"}:                             "it routes messages",
	{"broker/routing", "broker/metrics"}:                             "what is refused and dropped is counted where it happens",
	{"broker/routing", "broker/sessions"}:                            "messages are stored for sessions",
	{"broker/routing", "broker/transport"}:                           "messages go to connections",
	{"broker/listen", "broker/websocket"}:                            "WebSocket stands on its sockets",
	{"broker/metrics", "broker/sessions"}:                            "what the sessions hold is among its numbers",
	{"co/inbound", "broker/client"}:                                  "the messages of the broker's clients",
	{"broker/admin", "broker"}:                                       "it shows what the broker knows of its clients",
	{"co/registry/ociclient", "co/registry/encrypted"}:               "passwords go over TLS alone",
	{"co/registry/ociclient", "co/registry/failure"}:                 "what a registry answers has a kind of error",
	{"co/registry/ociclient", "co/registry/image"}:                   "it pushes images that are built there",
	{"lo/api", "broker/admin"}:                                       "the clients of the site's broker",
	{"broker/devices", "broker/access"}:                              "accounts of devices beside the names of the site's own clients",
	{"broker/external", "broker/client"}:                             "an external broker is reached by the MQTT client",
	{"co/data/exchange", "broker/client"}:                            "it makes MQTT messages",
	{"lo/data", "broker/client"}:                                     "it accepts MQTT messages",
	{"lo/data", "lo/journal"}:                                        "each stream of machine data has a journal",
	{"lo/data", "lo/uplink"}:                                         "each stream of machine data has an uplink",
	{"lo/data", "lo/uplink/pace"}:                                    "streams of machine data share the link with the events",
	{"lo/data/delivery", "broker/client"}:                            "it makes MQTT messages",
	{"lo/data/delivery", "lo/data/downlink"}:                         "it delivers what the downlink received",
	{"lo/data/delivery", "lo/data/retained"}:                         "it stores what is retained of that",
	{"lo/link", "broker/client"}:                                     "the link is an MQTT connection",

	{"en/engine/containerd/volumes", "en/engine/containerd/followed"}: "it is stored beside the volumes",
}

// private names packages with one user; tests may import them.
var private = map[string]string{"en/engine/containerd": "en/engine/engines"}

// noDaemon are the packages in en/engine that are no engine with a daemon.
var noDaemon = []string{"en/engine/engines", "en/engine/enginetest", "en/engine/logs", "en/engine/memory"}

// TestEnginesArePrivate checks that nothing but the choice of the engine depends on one of them.
func TestEnginesArePrivate(t *testing.T) {
	t.Parallel()
	for p := range packages {
		if pathpkg.Dir(p) == "en/engine" && !slices.Contains(noDaemon, p) && private[p] != "en/engine/engines" {
			t.Errorf("%s is an engine: name it in private, so that only en/engine/engines imports it", p)
		}
	}
}

func TestLayers(t *testing.T) {
	t.Parallel()
	seen, used := map[string]bool{}, map[[2]string]bool{}
	for _, p := range list(t) {
		from := rel(p.ImportPath)
		seen[from] = true
		fl, ok := packages[from]
		if !ok {
			t.Errorf("%s: not in the layer table: decide its layer", from)
			continue
		}
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module) {
				if !std(imp) && !allowed(from, imp) {
					t.Errorf("%s imports %s: only its adapter may (see confined)", from, imp)
				}
				continue
			}
			to := rel(imp)
			if _, ok := also[[2]string{from, to}]; ok {
				used[[2]string{from, to}] = true
				continue
			}
			if only, ok := private[to]; ok && from != only {
				t.Errorf("%s imports %s: only %s may, so that the others do not depend on one engine", from, to, only)
			}
			switch tl := packages[to]; {
			case fl < launcher && tier(from) != "" && tier(to) != "" && tier(from) != tier(to):
				t.Errorf("%s imports %s: tiers meet only on the wire", from, to)
			case fl == contract && tl == contract:
			case fl == tl && (inside(from, to) || inside(to, from)):
			case tl >= fl:
				t.Errorf("%s (%s) imports %s (%s): imports go down only", from, names[fl], to, names[tl])
			}
		}
	}
	for pair := range also {
		if !used[pair] {
			t.Errorf("%s no longer imports %s: drop the exception", pair[0], pair[1])
		}
	}
	for p := range packages {
		if !seen[p] {
			t.Errorf("%s: in the layer table, but there is no such package", p)
		}
	}
}

// TestSlimAgent checks that the agent carries nothing of the other tiers.
func TestSlimAgent(t *testing.T) {
	t.Parallel()
	if _, ok := packages["cmd/colony-en"]; !ok {
		t.Fatal("cmd/colony-en is not in the layer table")
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/colony-en")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		for _, bad := range []string{
			module + "/co", module + "/lo", module + "/margo", module + "/migrations",
			"github.com/jackc/pgx", "github.com/mochi-mqtt", "github.com/compose-spec", "github.com/google/go-containerregistry",
			"github.com/danielgtaylor/huma", "github.com/prometheus/client_golang", "github.com/spf13/cobra",
		} {
			if dep == bad || strings.HasPrefix(dep, bad+"/") {
				t.Errorf("colony-en depends on %s", dep)
			}
		}
	}
}

func rel(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
}

// tier returns the tier that owns package p, or "". The broker belongs to none:
// each tier that has one may use it.
func tier(p string) string {
	top, _, _ := strings.Cut(p, "/")
	if slices.Contains([]string{"co", "lo", "en"}, top) {
		return top
	}
	return ""
}

// inside reports whether the folder of package p lies in that of package q.
func inside(p, q string) bool { return strings.HasPrefix(p, q+"/") }

func std(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func allowed(from, imp string) bool {
	for mod, pkgs := range confined {
		if (imp == mod || strings.HasPrefix(imp, mod+"/")) && slices.Contains(pkgs, from) {
			return true
		}
	}
	return false
}

type pkg struct {
	ImportPath string
	Imports    []string
	Dir        string
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Dir", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var pkgs []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}
