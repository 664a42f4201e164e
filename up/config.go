package up

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/colonyfleet/colony/co"
	cokeys "github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/en"
	"github.com/colonyfleet/colony/en/engine/engines"
	"github.com/colonyfleet/colony/internal/configfile"
	"github.com/colonyfleet/colony/internal/privatecontainerd"
	"github.com/colonyfleet/colony/lo"
	"github.com/colonyfleet/colony/protocol"
)

// keepAlive is the MQTT keep-alive of all connections. It is short, so that a peer
// that hangs is found within 15 s, which on one machine costs nothing.
const keepAlive = 10 * time.Second

func (s *supervisor) coConfig() co.Options {
	o := co.DefaultOptions()
	o.StateDir, o.DatabaseURL, o.HTTP, o.MQTT = s.dir.sub("co"), s.opts.DatabaseURL, s.opts.HTTPAddr, s.opts.COMQTTAddr
	o.Git.Remote, o.Git.Interval, o.RegistryHost, o.PresenceGrace = s.opts.GitRemote, time.Second, RegistryHost, keepAlive*3/2
	o.Identity = co.IdentityOptions{Enrol: s.opts.COEnrolAddr, MQTT: s.opts.COTLSAddr, HTTP: s.opts.COHTTPSAddr}
	o.Signing.Dir = s.dir.sub("keys")
	o.Import.Roots, o.Import.Registries = s.opts.ImportRoots, s.opts.ImportRegistries
	if s.opts.Samples != "" {
		o.Import.Roots = append([]string{s.dir.sub("git", "apps")}, o.Import.Roots...)
	}
	return o
}

func (s *supervisor) loConfig() lo.Options {
	o := lo.DefaultOptions()
	o.Site, o.StateDir, o.MQTT, o.HTTP = protocol.SiteID(s.opts.Site), s.dir.sub("lo"), s.opts.LOMQTTAddr, s.opts.LOHTTPAddr
	o.RootKeyFile = s.dir.sub("keys", cokeys.RootPublic)
	o.CO.MQTT, o.CO.Enrol = []string{"tls://" + dialable(s.opts.COTLSAddr)}, []string{dialable(s.opts.COEnrolAddr)}
	o.CO.HTTP, o.CO.KeepAlive = "https://"+dialable(s.opts.COHTTPSAddr), keepAlive
	o.Identity.Enrol, o.Identity.MQTT, o.Identity.HTTP = s.opts.LOEnrolAddr, s.opts.LOTLSAddr, s.opts.LOHTTPSAddr
	o.PresenceGrace, o.ClientEvents = keepAlive*3/2, true
	if socket := s.dir.sub("lo.sock"); len(socket) <= lo.MaxSocket {
		o.Socket = socket
	}
	return o
}

func (s *supervisor) enConfig() en.Options {
	o := en.DefaultOptions()
	o.Site, o.Node, o.Labels, o.StateDir = protocol.SiteID(s.opts.Site), protocol.NodeID(s.opts.Node), s.opts.Labels, s.dir.sub("en")
	o.LO.MQTT, o.LO.Enrol, o.LO.KeepAlive = []string{"tls://" + dialable(s.opts.LOTLSAddr)}, []string{dialable(s.opts.LOEnrolAddr)}, keepAlive
	o.RootKeyFile = s.dir.sub("keys", cokeys.RootPublic)
	o.LogFile = s.dir.sub("logs", "en.log")
	o.Engine = s.engineOptions()
	o.Engine.Mirror, o.Engine.MirrorOnly = "https://"+dialable(s.opts.LOHTTPSAddr), true
	return o
}

// engineOptions returns the options of the container engine, without the image cache.
func (s *supervisor) engineOptions() engines.Options {
	o := engines.Default()
	o.Address, o.StateDir = s.opts.Containerd, s.dir.sub("en", "engine")
	if o.Address == "" {
		o.Address = privatecontainerd.Socket(s.dir.sub("containerd"))
	}
	return o
}

// writeConfig writes the configuration file of a role. It holds no secret but the
// database's URL, and only root may read it.
func (s *supervisor) writeConfig(role string, options any) (string, error) {
	b, err := configfile.Marshal(options)
	if err != nil {
		return "", err
	}
	path := s.configPath(role)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return "", fmt.Errorf("write configuration: %w", err)
	}
	return path, nil
}

// configPath is where the configuration file of a role is.
func (s *supervisor) configPath(role string) string { return s.dir.sub("config", role+".yaml") }

// dialable turns an address to listen on into one to connect to.
func dialable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr
}
