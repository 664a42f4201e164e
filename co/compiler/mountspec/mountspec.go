// Package mountspec reads the forms in which Compose describes a mount: short tmpfs, the
// options of a volume's driver, and where a config or secret lies.
package mountspec

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/colonyfleet/colony/protocol"
)

// Short are the options of the short form of a volume. Rro is what ro means here, rslave
// what a writable bind has; those after nocopy are for kernels and machines that nodes are
// not. They change nothing.
var Short = []string{"ro", "rw", "nocopy", "rro", "rslave", "z", "Z", "cached", "delegated", "consistent"}

// inProc are the files of /proc that runc lets be hidden by others, as LXCFS does.
var inProc = strings.Fields("cpuinfo diskstats loadavg meminfo net/dev slabinfo stat swaps uptime")

// CheckTarget refuses a mount at a path that no container can have one at: its root, /proc,
// and what Linux makes below it and below /sys, where no directory can be made for a mount.
func CheckTarget(m protocol.Mount) error {
	target := path.Clean(m.Target)
	inside, proc := strings.CutPrefix(target, "/proc/")
	held := m.Kind == protocol.MountBind || m.Kind == protocol.MountFile
	switch {
	case target == "/":
		return fmt.Errorf("target /: it is the root of the container, which the image fills: mount at a directory below it")
	case target == "/dev" && m.Kind != protocol.MountBind:
		return fmt.Errorf("target /dev: the node puts the devices of the container there: mount at a directory below it, such as /dev/shm, or bind /dev of the node")
	case target == "/proc":
		return fmt.Errorf("target /proc: it shows the processes of the container: mount elsewhere, such as /host%s, and tell the program so", target)
	case proc && !(held && slices.Contains(inProc, inside)), strings.HasPrefix(target, "/sys/") && (m.Kind != protocol.MountBind || !strings.HasPrefix(path.Clean(m.Source)+"/", "/sys/")):
		return fmt.Errorf("target %s: Linux makes what is there, and no mount can be added: mount elsewhere, such as /host%s, and set parameters of the kernel with sysctls", m.Target, target)
	}
	return nil
}

// Around returns the mount in which another one lies, the innermost of several.
func Around(all []protocol.Mount, inner protocol.Mount) (around protocol.Mount) {
	for _, m := range all {
		if strings.HasPrefix(inner.Target, m.Target+"/") && len(m.Target) > len(around.Target) {
			around = m
		}
	}
	return around
}

// everywhere are paths that every node has.
var everywhere = strings.Fields("/ /proc /sys /dev /etc /run /var /var/run /var/log /etc/localtime")

// JudgeBind refuses or warns of what a bind says beside its paths: of mounts below it, and of a
// path that the node does not have.
func JudgeBind(v types.ServiceVolumeConfig, refuse, warn func(format string, args ...any)) {
	if v.Type != types.VolumeTypeBind || v.Bind == nil {
		return
	}
	switch v.Bind.Propagation {
	case "":
	case types.PropagationRSlave:
		if v.ReadOnly {
			warn("%s: a read-only bind is so with all below it, and does not see what the node mounts there later: rslave is not used", v.Target)
		}
	default:
		refuse("%s: propagation %q: want rslave, or leave it out: the node sees nothing of the mounts of a container; what both are to see is mounted on the node", v.Target, v.Bind.Propagation)
	}
	if path.IsAbs(v.Source) && bool(v.Bind.CreateHostPath) && !slices.Contains(everywhere, path.Clean(v.Source)) && !strings.HasSuffix(v.Source, "/docker.sock") {
		warn("%s: the node must have the path %s: it is not made, as Docker does; make it on the node, or use a named volume", v.Target, v.Source)
	}
}

// maxMode is the largest mode: permissions, sticky, setuid and setgid.
const maxMode = 0o7777

// Tmpfs reads the short form of a tmpfs: a path, and options behind a colon.
func Tmpfs(line string) (protocol.Mount, error) {
	target, options, _ := strings.Cut(line, ":")
	m := protocol.Mount{Kind: protocol.MountTmpfs, Target: target}
	return m, tmpfsOptions(&m, options)
}

// tmpfsOptions reads options such as size=64m,mode=1777,noexec.
func tmpfsOptions(m *protocol.Mount, options string) error {
	for option := range strings.SplitSeq(options, ",") {
		switch key, value, _ := strings.Cut(option, "="); key {
		case "", "rw", "exec", "nosuid", "nodev": // what a tmpfs is anyway
		case "size":
			var size types.UnitBytes
			if err := size.DecodeMapstructure(value); err != nil || size < 0 {
				return fmt.Errorf("size %q: want bytes, or a form such as 64m", value)
			}
			m.Size = uint64(size)
		case "mode":
			mode, err := strconv.ParseUint(value, 8, 32)
			if err != nil || mode == 0 || mode > maxMode {
				return fmt.Errorf("mode %q: want an octal number from 1 to 7777", value)
			}
			m.Mode = uint32(mode)
		case "uid", "gid":
			id, err := owner(key, value)
			if err != nil || value == "" {
				return fmt.Errorf("%s %q: want a number from 0 to 2147483647: the names of users are in the image", key, value)
			}
			if key == "uid" {
				m.UID = id
			} else {
				m.GID = id
			}
		case "ro":
			m.ReadOnly = true
		case "noexec":
			m.NoExec = true
		default:
			return fmt.Errorf("the option %q is not supported; size, mode, uid, gid, ro, rw, exec, noexec, nosuid and nodev are", option)
		}
	}
	return nil
}

// LongTmpfs reads the long form of a tmpfs.
func LongTmpfs(m *protocol.Mount, t *types.ServiceVolumeTmpfs) error {
	if t == nil {
		return nil
	}
	if t.Mode > maxMode {
		return fmt.Errorf("tmpfs.mode %o: want 1 to 7777", t.Mode)
	}
	m.Size, m.Mode = uint64(max(t.Size, 0)), t.Mode
	return nil
}

// Local reads driver_opts of the driver local, which are those of mount(8): what a mount of
// the volume is. Only a bind of a directory of the node stands for a volume: a tmpfs would be
// one for each container.
func Local(opts map[string]string) (protocol.Mount, error) {
	m := protocol.Mount{Kind: protocol.MountBind, Source: path.Clean(opts["device"])}
	options := strings.Split(opts["o"], ",")
	switch {
	case opts["type"] == "tmpfs":
		return m, fmt.Errorf("type tmpfs: name it under tmpfs of the service")
	case network(opts["type"]):
		return m, fmt.Errorf("type %q: a node mounts file systems of the network itself: write %q into its /etc/fstab, "+
			"and driver_opts {type: none, o: bind, device: /mnt/share} here", opts["type"], fstab(opts["type"], options, opts["device"]))
	case !slices.Contains(options, "bind") && !slices.Contains(options, "rbind"):
		return m, fmt.Errorf("type %q: want a bind (type: none, o: bind); mount a file system of the network on the node, and bind its path", opts["type"])
	case !path.IsAbs(m.Source) || m.Source == "/":
		return m, fmt.Errorf("device %q: want an absolute path of the node", opts["device"])
	}
	for _, option := range options {
		switch key, _, _ := strings.Cut(option, "="); key {
		case "ro":
			m.ReadOnly = true
		case "", "bind", "rbind", "rw", "uid", "gid": // mount(2) reads no data with MS_BIND
		default:
			return m, fmt.Errorf("o: the option %q is not supported; bind, ro and rw are", option)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(opts)) {
		if key != "type" && key != "device" && key != "o" {
			return m, fmt.Errorf("%s is not supported; type, device and o are", key)
		}
	}
	return m, nil
}

// network reports whether a type of mount(8) is of a file system of the network.
func network(fstype string) bool {
	return slices.Contains([]string{"nfs", "nfs4", "cifs", "smb3"}, fstype)
}

// fstab returns the line of /etc/fstab that mounts what the options of a volume name.
func fstab(fstype string, options []string, device string) string {
	var shown []string
	for _, option := range options {
		if address, ok := strings.CutPrefix(option, "addr="); ok && strings.HasPrefix(device, ":") {
			device = address + device
		} else if option != "" && !strings.HasPrefix(option, "pass") { // what is refused is shown to many
			shown = append(shown, option)
		}
	}
	return strings.Join([]string{device, "/mnt/share", fstype, strings.Join(append(shown, "_netdev"), ","), "0 0"}, " ")
}

var drive = regexp.MustCompile(`^[A-Za-z]:([/\\]|$)`)

// Drive reports whether a path begins with a drive of Windows, as the loader takes the name of
// a volume that has one letter.
func Drive(path string) bool { return drive.MatchString(path) }

// File reads where the file of a config or a secret lies; target is the default.
func File(c types.FileReferenceConfig, target string) (protocol.Mount, error) {
	m := protocol.Mount{Kind: protocol.MountFile, Target: c.Target, ReadOnly: true}
	if m.Target == "" {
		m.Target = target
	}
	if c.Mode != nil {
		if *c.Mode <= 0 || *c.Mode > 0o777 {
			return m, fmt.Errorf("mode %s: want 0001 to 0777", c.Mode)
		}
		m.Mode = uint32(*c.Mode)
	}
	var err error
	if m.UID, err = owner("uid", c.UID); err == nil {
		m.GID, err = owner("gid", c.GID)
	}
	return m, err
}

// owner reads the number of a user or group; without one it is 0.
func owner(key, text string) (uint32, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s %q: want a number from 0 to 2147483647: the names of users are in the image", key, text)
	}
	return uint32(n), nil
}

// fileEndings are those of files that an author writes. A relative bind of one that the
// archive does not have is a file that was forgotten: a volume in its place would give
// the program a directory.
var fileEndings = strings.Fields(`
.acl .cfg .cnf .conf .config .cron .crt .csv .env .html .hcl .ini .js .json .key .list .lua .passwd .pem
.properties .py .rules .sh .sql .template .tmpl .toml .txt .xml .yaml .yml
`)

// EndsLikeFile reports whether a path ends like a file that an author writes.
func EndsLikeFile(name string) bool { return slices.Contains(fileEndings, path.Ext(name)) }

// fileNames are those of files without an ending, beside those such as Caddyfile.
var fileNames = strings.Fields("passwd shadow htpasswd .htpasswd hosts .env .pgpass .netrc .npmrc")

var capitalFile = regexp.MustCompile(`^[A-Z][A-Za-z]*file$`)

// AtFile reports whether the target of a bind is where a program looks for a file. A name that
// begins with a dot, or whose ending is not that of a file (conf.d, example.com), is as often
// that of a directory.
func AtFile(target string) bool {
	base := path.Base(target)
	return slices.Contains(fileNames, base) || capitalFile.MatchString(base) || base[0] != '.' && EndsLikeFile(base)
}

var notInVolumeName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// BindVolume returns the name of the volume that stands for a relative path.
func BindVolume(source string) string {
	return "bind_" + strings.Trim(notInVolumeName.ReplaceAllString(source, "_"), "_")
}
