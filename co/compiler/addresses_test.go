package compiler

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/compiler/addresses"
	"github.com/colonyfleet/colony/protocol"
)

// What a file gives of addresses reaches each container on the network; what cannot come true
// is a warning.
func TestAddresses(t *testing.T) {
	t.Parallel()
	of := func(address string) *protocol.Addressing {
		return &protocol.Addressing{Subnet: "172.20.5.0/24", Address: address, From: "172.20.5.11", To: "172.20.5.254"}
	}
	service := func(name, address string) string {
		return "  " + name + ": {image: i, networks: {n: {ipv4_address: " + address + "}}}\n"
	}
	const other, net = "  z: {image: i, networks: [n]}\n", "networks: {n: {ipam: {config: [{subnet: 172.20.0.0/16}]}}}\n"
	for name, c := range map[string]struct {
		services, networks string
		want               map[string]*protocol.Addressing
		warn               string
	}{
		"given":           {service("a", "172.20.5.10") + other, net, map[string]*protocol.Addressing{"a": of("172.20.5.10"), "z": of("")}, "networks.n.ipam: the addresses are given where the node does not use 172.20.5.0/24 otherwise"},
		"subnet alone":    {other, net, nil, "networks.n.ipam: the node chooses the subnet"},
		"no subnet":       {service("a", "172.20.5.10"), "networks: {n: }\n", nil, "services.a.networks.n.ipv4_address: the network has no subnet under ipam.config"},
		"outside":         {service("a", "172.21.5.10"), net, nil, "it is not in the subnet 172.20.0.0/16 of the network"},
		"several ranges":  {service("a", "172.20.5.10") + service("b", "172.20.6.10"), net, nil, "lie in several ranges of 256"},
		"of the node":     {service("a", "172.20.5.1"), net, nil, "the node has the first address"},
		"public":          {service("a", "8.8.8.8"), "networks: {n: {ipam: {config: [{subnet: 8.8.0.0/16}]}}}\n", nil, "it is no private address"},
		"replicas":        {"  a: {image: i, scale: 2, networks: {n: {ipv4_address: 172.20.5.10}}}\n", net, nil, "the service has several replicas"},
		"gateway":         {service("a", "172.20.5.10"), "networks: {n: {ipam: {config: [{subnet: 172.20.0.0/16, gateway: 172.20.0.254}]}}}\n", map[string]*protocol.Addressing{"a": of("172.20.5.10")}, "networks.n.ipam.config[0].gateway: 172.20.0.254 is not used"},
		"another network": {service("a", "172.20.5.10") + "  z: {image: i, network_mode: host}\n", net, map[string]*protocol.Addressing{"a": of("172.20.5.10")}, ""},
	} {
		containers, warnings := imported(t, "services:\n"+c.services+c.networks, nil)
		for _, container := range containers {
			if diff := cmp.Diff(c.want[container.Name], container.Addressing); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", name, container.Name, diff)
			}
		}
		if !strings.Contains(warnings, c.warn) {
			t.Errorf("%s: warnings %q, want %q", name, warnings, c.warn)
		}
	}
	containers, _ := imported(t, "services:\n"+service("a", "172.20.5.10")+"  z: {image: i, networks: [m]}\nnetworks: {m: , n: {ipam: {config: [{subnet: 172.20.0.0/16}]}}}\n", nil)
	want := []protocol.Attachment{{Network: "n", Addressing: of("172.20.5.10")}}
	if diff := cmp.Diff(want, containers[0].Networks); diff != "" || containers[0].Addressing != nil || containers[1].Networks[0].Addressing != nil {
		t.Errorf("on a network apart (-want +got):\n%s", diff)
	}
}

// The bridge of a deployment has the addresses that one component gives, for all of them.
func TestAddressesOfADeployment(t *testing.T) {
	t.Parallel()
	part := func(name string, a *protocol.Addressing) protocol.Component {
		return protocol.Component{Name: name, Containers: []protocol.Container{{Name: name, Addressing: a}, {Name: name + "-host", Network: protocol.NetworkHost}}}
	}
	given := &protocol.Addressing{Subnet: "172.20.5.0/24", Address: "172.20.5.10", From: "172.20.5.11", To: "172.20.5.254"}
	components := []protocol.Component{part("a", nil), part("b", given)}
	if err := CheckShared(components); err != nil {
		t.Fatal(err)
	}
	addresses.Share(components)
	want := &protocol.Addressing{Subnet: "172.20.5.0/24", From: "172.20.5.11", To: "172.20.5.254"}
	if diff := cmp.Diff(want, components[0].Containers[0].Addressing); diff != "" || components[0].Containers[1].Addressing != nil {
		t.Errorf("the other component (-want +got):\n%s", diff)
	}
	err := CheckShared([]protocol.Component{part("a", given), part("b", given)})
	if err == nil || !strings.Contains(err.Error(), "the components a and b both give addresses") {
		t.Errorf("two components that give addresses: %v", err)
	}
}
