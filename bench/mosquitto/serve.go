package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/broker"
	"github.com/colonyfleet/colony/broker/access"
	"github.com/colonyfleet/colony/broker/limits"
	"github.com/colonyfleet/colony/broker/sessions"
	"github.com/colonyfleet/colony/protocol"
)

// notesDir names, in the environment, the folder in which the broker tells the suite that it
// was started, and which key of Mosquitto's configuration it has nothing for.
const (
	notesDir        = "COLONY_SUITE_NOTES"
	noteServed      = "served"
	noteUnsupported = "unsupported"
)

// tell leaves a note for the suite.
func tell(note, content string) error {
	dir := os.Getenv(notesDir)
	if dir == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, note), []byte(content), 0o600)
}

// errUnsupported ends the broker when a configuration has such a key.
var errUnsupported = errors.New("not among what the broker is configured with")

func exitCode(err error) int {
	if errors.Is(err, errUnsupported) {
		return 3
	}
	return 1
}

// anybody may do everything, if anybody may connect at all.
type anybody struct{ refused bool }

func (a anybody) Connect(i access.ConnectInfo) (access.Identity, error) {
	if a.refused {
		return access.Identity{}, protocol.Errorf(protocol.Denied, "a client may not connect without a name that the configuration has")
	}
	return access.Identity{Name: "anybody"}, nil
}
func (anybody) MayPublish(access.Identity, string) bool   { return true }
func (anybody) MaySubscribe(access.Identity, string) bool { return true }

// A setup is what Mosquitto's arguments and configuration file ask for.
type setup struct {
	ports       []string
	anonymous   bool
	persistence bool
	folder      string // in which Mosquitto would store
	store       string // the file that it would store to
	limits      limits.Limits
	sessions    sessions.Limits
}

// serve is the broker, until ctx ends.
func serve(ctx context.Context, args []string) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	o := broker.Options{
		Name: "suite", Access: anybody{refused: !s.anonymous}, Limits: s.limits,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), // the log is not read while the test runs
	}
	for i, p := range s.ports {
		o.Listeners = append(o.Listeners, broker.Listener{Name: fmt.Sprint("port", i), Network: broker.TCP, Address: net.JoinHostPort("127.0.0.1", p)})
	}
	dir, err := s.sessionDir()
	if err != nil {
		return err
	}
	if !s.persistence {
		defer os.RemoveAll(dir)
	}
	o.Sessions = broker.Sessions{Dir: dir, Limits: s.sessions}
	b, err := broker.New(o)
	if err != nil {
		return err
	}
	if err := b.Start(ctx); err != nil {
		return err
	}
	if err := tell(noteServed, ""); err != nil {
		return err
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return b.Stop(stopping)
}

// sessionDir is where sessions are stored: beside the file that Mosquitto would make, which
// is made too, as the tests remove it.
func (s *setup) sessionDir() (string, error) {
	if !s.persistence {
		return os.MkdirTemp("", "mosquitto-suite")
	}
	dir := s.store + ".sessions"
	if _, err := os.Stat(s.store); errors.Is(err, os.ErrNotExist) { // the first start, or it was removed
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
	}
	return dir, os.WriteFile(s.store, nil, 0o600)
}

// parse reads the arguments: -v, -p and -c.
func parse(args []string) (*setup, error) {
	s := &setup{store: "mosquitto.db"}
	s.limits.Levels = 201               // as Mosquitto
	s.limits.ConnectBytes = 1 << 20     // one of its tests has a CONNECT of 260 kB,
	s.limits.UserProperties = 1_000_000 // which are user properties
	for len(args) > 0 {
		switch {
		case args[0] == "-v":
			args = args[1:]
			continue
		case len(args) > 1 && args[0] == "-p":
			s.ports, s.anonymous = append(s.ports, args[1]), true
		case len(args) > 1 && args[0] == "-c":
			if err := s.read(args[1]); err != nil {
				return nil, err
			}
		default:
			return nil, unsupported(args[0])
		}
		args = args[2:]
	}
	if len(s.ports) == 0 {
		s.ports = []string{"1883"}
	}
	return s, nil
}

// unsupported notes a key for the suite.
func unsupported(key string) error {
	return errors.Join(fmt.Errorf("%s: %w", key, errUnsupported), tell(noteUnsupported, key))
}

// read reads a configuration file.
func (s *setup) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if key == "" || key[0] == '#' {
			continue
		}
		if err := s.set(key, strings.TrimSpace(value)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// set acts on a key of the configuration.
func (s *setup) set(key, value string) error {
	n, _ := strconv.Atoi(value) // 0 where it is no number
	switch key {
	case "port", "listener":
		port, _, _ := strings.Cut(value, " ")
		if port != "0" {
			s.ports = append(s.ports, port)
		}
	case "allow_anonymous":
		s.anonymous = value == "true"
	case "persistence":
		s.persistence = value == "true"
	case "persistence_file":
		if s.store = value; !filepath.IsAbs(value) {
			s.store = filepath.Join(s.folder, value)
		}
	case "persistence_location":
		s.folder = value
	case "max_connections":
		s.limits.Connections = n
	case "max_keepalive":
		s.limits.KeepAlive = time.Duration(n) * time.Second
	case "max_packet_size":
		s.limits.PacketBytes = uint32(min(uint64(max(n, 0)), math.MaxUint32))
	case "max_inflight_messages":
		s.limits.Unacknowledged = n
	case "max_queued_messages":
		s.sessions.Messages = n
	case "max_queued_bytes":
		s.sessions.Bytes = int64(n)
	case "log_type", "log_dest", "connection_messages", "per_listener_settings", "sys_interval", "autosave_interval", "set_tcp_nodelay":
	default:
		return unsupported(key)
	}
	return nil
}
