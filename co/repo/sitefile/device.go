package sitefile

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/colonyfleet/colony/margo/rawyaml"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/device"
)

// A Device is the account of a device as a file writes it.
type Device struct {
	User      string   `json:"user" yaml:"user" doc:"user name with which it connects"`
	ClientIDs []string `json:"clientIDs,omitempty" yaml:"clientIDs,omitempty,flow" doc:"client ids that it may have, * for any characters; default its user name, and what begins with that and a slash"`
	Publish   []string `json:"publish,omitempty" yaml:"publish,omitempty,flow" doc:"MQTT topic filters of what it may publish"`
	Subscribe []string `json:"subscribe,omitempty" yaml:"subscribe,omitempty,flow" doc:"MQTT topic filters of what it may receive"`
	Password  Password `json:"password" yaml:"password" doc:"what proves that a client is the device: one of the two"`
}

// A Password is what a file has of one: never the password itself.
type Password struct {
	SHA256 string `json:"sha256,omitempty" yaml:"sha256,omitempty" doc:"SHA-256 of a generated password of at least 128 random bits, in hexadecimal digits"`
	Bcrypt string `json:"bcrypt,omitempty" yaml:"bcrypt,omitempty" doc:"bcrypt hash of a password that a person chose"`
}

// Devices shows accounts as a file writes them.
func Devices(list []protocol.DeviceAccount) []Device {
	out := make([]Device, len(list))
	for i, d := range list {
		out[i] = Device{d.User, d.ClientIDs, d.Publish, d.Subscribe, Password{hex.EncodeToString(d.SHA256), d.Bcrypt}}
	}
	return out
}

// device reads one item of the list of devices.
func (r *reader) device(i item) protocol.DeviceAccount {
	o := r.object(i.node, i.path, "user", "clientIDs", "publish", "subscribe", "password")
	var d protocol.DeviceAccount
	if r.required(o, "user") {
		d.User, _ = r.text(o, "user")
	}
	d.ClientIDs, d.Publish, d.Subscribe = r.texts(o, "clientIDs"), r.texts(o, "publish"), r.texts(o, "subscribe")
	if !r.required(o, "password") {
		return d
	}
	p := r.child(o, "password", "sha256", "bcrypt")
	d.Bcrypt, _ = r.text(p, "bcrypt")
	if s, ok := r.text(p, "sha256"); ok {
		var err error
		if d.SHA256, err = hex.DecodeString(s); err != nil {
			r.problem(join(p.path, "sha256"), p.fields["sha256"].Line, "%q: want 64 hexadecimal digits: colony site device add makes a password and writes this", s)
		}
	}
	return d
}

const deviceList = "spec.broker.devices"

// validateDevices applies the check that every tier makes, and finds for each fault where in the file it is.
func (r *reader) validateDevices(list []protocol.DeviceAccount) {
	if len(list) > device.MaxDevices {
		r.problem(deviceList, r.lines[deviceList], "%d accounts: a site has at most %d", len(list), device.MaxDevices)
		return
	}
	for _, f := range device.Validate(list) {
		at := fmt.Sprintf("%s[%d]", deviceList, f.Index)
		path := join(at, f.Field)
		line := r.lines[path]
		if line == 0 {
			line = r.lines[at]
		}
		r.problem(path, line, "%s", f.Message)
	}
}

// SetDevice returns the file of a site with an account added, or put in the place of that of the same
// user. What else the file has stays as it is, its comments too. raw is nil where there is no file.
func SetDevice(site protocol.SiteID, raw []byte, d Device) ([]byte, error) {
	var node yaml.Node
	if err := node.Encode(d); err != nil {
		return nil, fmt.Errorf("write the account of a device: %w", err)
	}
	return editDevices(site, raw, func(list *yaml.Node) error {
		if i := indexOf(list, d.User); i >= 0 {
			list.Content[i] = &node
		} else {
			list.Content = append(list.Content, &node)
		}
		return nil
	})
}

// ErrNoDevice is that of RemoveDevice where there is no such account.
var ErrNoDevice = errors.New("no such device")

// RemoveDevice returns the file of a site without the account of a user.
func RemoveDevice(site protocol.SiteID, raw []byte, user string) ([]byte, error) {
	return editDevices(site, raw, func(list *yaml.Node) error {
		i := indexOf(list, user)
		if i < 0 {
			return ErrNoDevice
		}
		list.Content = slices.Delete(list.Content, i, i+1)
		return nil
	})
}

// indexOf returns where in the list the account of a user is; -1: nowhere.
func indexOf(list *yaml.Node, user string) int {
	return slices.IndexFunc(list.Content, func(n *yaml.Node) bool {
		v := field(n, "user")
		return v != nil && v.Value == user
	})
}

func editDevices(site protocol.SiteID, raw []byte, change func(list *yaml.Node) error) ([]byte, error) {
	return edit(site, raw, func(spec *yaml.Node) error {
		list := entry(entry(spec, "broker", yaml.MappingNode), "devices", yaml.SequenceNode)
		list.Style &^= yaml.FlowStyle
		if err := change(list); err != nil {
			return err
		}
		if len(list.Content) == 0 {
			remove(spec, "broker")
		}
		return nil
	})
}

// edit returns the file of a site with another spec; raw is empty where there is no file.
func edit(site protocol.SiteID, raw []byte, change func(spec *yaml.Node) error) ([]byte, error) {
	if len(raw) == 0 {
		var err error
		if raw, err = Marshal(site, nil, Further{}); err != nil {
			return nil, err
		}
	}
	if _, err := Parse(site, raw); err != nil { // the nodes below are as they must be
		return nil, fmt.Errorf("the file of the site is to be corrected first: %w", err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(rawyaml.AnyMinor(raw), &root); err != nil {
		return nil, fmt.Errorf("read site file: %w", err)
	}
	spec := entry(root.Content[0], "spec", yaml.MappingNode)
	if err := change(spec); err != nil {
		return nil, err
	}
	out, err := encode(&root)
	if err == nil {
		_, err = Parse(site, out)
	}
	return out, err
}

// field returns the value of a key; nil where it is not there.
func field(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// entry returns the value of a key, which it adds where it is not there.
func entry(mapping *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	if v := field(mapping, key); v != nil {
		return v
	}
	v := &yaml.Node{Kind: kind}
	mapping.Style &^= yaml.FlowStyle // such as {}
	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, v)
	return v
}

func remove(mapping *yaml.Node, key string) {
	i := slices.IndexFunc(mapping.Content, func(n *yaml.Node) bool { return strings.EqualFold(n.Value, key) })
	mapping.Content = slices.Delete(mapping.Content, i, i+2)
}
