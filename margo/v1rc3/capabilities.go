package v1rc3

import (
	"encoding/json"
	"regexp"

	"github.com/colonyfleet/colony/margo/document"
)

// Capabilities are a DeviceCapabilitiesManifest: what a device has.
type Capabilities struct {
	Properties DeviceProperties `json:"properties"`
	// Labels are strings, numbers, bools, or lists of strings or of numbers.
	Labels map[string]any `json:"labels,omitempty"`
}

// DeviceProperties describe a device. A gateway that runs no workloads gives the
// first four only.
type DeviceProperties struct {
	ID           string `json:"id"`
	Vendor       string `json:"vendor"`
	ModelNumber  string `json:"modelNumber"`
	SerialNumber string `json:"serialNumber"`

	CPUs            []CPU        `json:"cpus,omitempty"`
	Memory          string       `json:"memory,omitempty"`  // such as 16Gi; a space before the unit is tolerated
	Storage         string       `json:"storage,omitempty"` // likewise
	Peripherals     []Peripheral `json:"peripherals,omitzero"`
	Interfaces      []Interface  `json:"interfaces,omitzero"`
	OTelCollector   *bool        `json:"otelCollector,omitempty"`
	Runtimes        []string     `json:"supportedRuntimes,omitempty"`        // oci, custom
	DeploymentTypes []string     `json:"supportedDeploymentTypes,omitempty"` // helm, compose, custom
}

// A CPU is a set of cores that one workload can use.
type CPU struct {
	Cores        float64 `json:"cores"`
	Architecture string  `json:"architecture,omitempty"` // amd64, arm64, arm
}

// A Peripheral is a device that is attached.
type Peripheral struct {
	Type         string `json:"type"` // gpu, display, camera, microphone, speaker
	Manufacturer string `json:"manufacturer,omitempty"`
	Model        string `json:"model,omitempty"`
}

// An Interface is a way to communicate.
type Interface struct {
	Type string `json:"type"` // ethernet, wifi, cellular, bluetooth, usb, canbus, rs232
}

var deviceIDPattern = regexp.MustCompile(`^[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*$`)

// ParseCapabilities reads a DeviceCapabilitiesManifest, which is JSON. An error is
// a Problems with everything that is wrong with it.
func ParseCapabilities(doc []byte) (*Capabilities, error) {
	if !json.Valid(doc) {
		return nil, Problems{{Message: "not valid JSON"}}
	}
	top, d, err := document.Read(doc, isOpen)
	if err != nil {
		return nil, err
	}
	o := top.Object("properties", "labels", document.AnyExtension)
	c := &Capabilities{Properties: readDeviceProperties(o.Need("properties"))}
	o.Extensions()
	l := o.Mapping("labels").Object()
	for _, key := range l.Keys {
		if c.Labels == nil {
			c.Labels = map[string]any{}
		}
		c.Labels[key] = readLabel(l.Fields[key])
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

func readDeviceProperties(v value) DeviceProperties {
	o := v.Object("id", "vendor", "modelNumber", "serialNumber", "cpus", "memory", "storage", "peripherals", "interfaces",
		"otelCollector", "supportedRuntimes", "supportedDeploymentTypes")
	p := DeviceProperties{
		ID:              o.Need("id").Match(deviceIDPattern, "a device id such as gateway-1 or gateway-1/child-2"),
		Vendor:          o.Need("vendor").Text(),
		ModelNumber:     o.Need("modelNumber").Text(),
		SerialNumber:    o.Need("serialNumber").Text(),
		Memory:          o.Get("memory").Text(),
		Storage:         o.Get("storage").Text(),
		OTelCollector:   o.Get("otelCollector").Bool(),
		Runtimes:        readWords(o.Get("supportedRuntimes"), rc3.runtimes...),
		DeploymentTypes: readWords(o.Get("supportedDeploymentTypes"), rc3.deploymentTypes...),
	}
	for _, item := range o.Get("cpus").List() {
		f := item.Object("cores", "architecture")
		cpu := CPU{Architecture: f.Get("architecture").OneOf(rc3.cpuArchitectures...)}
		if n := f.Need("cores").Number(); n != nil {
			cpu.Cores = *n
		}
		p.CPUs = append(p.CPUs, cpu)
	}
	for _, item := range o.Get("peripherals").List() {
		f := item.Object("type", "manufacturer", "model")
		p.Peripherals = append(p.Peripherals, Peripheral{
			Type:         f.Need("type").OneOf(rc3.peripherals...),
			Manufacturer: f.Get("manufacturer").Text(), Model: f.Get("model").Text(),
		})
	}
	for _, item := range o.Get("interfaces").List() {
		p.Interfaces = append(p.Interfaces, Interface{Type: item.Object("type").Need("type").OneOf(rc3.interfaces...)})
	}
	return p
}

// readWords reads a list of at least one word of a closed list.
func readWords(v value, words ...string) []string {
	var all []string
	for _, item := range v.Some() {
		all = append(all, item.OneOf(words...))
	}
	return all
}

// readLabel reads a string, number, bool, or a list of strings or of numbers.
func readLabel(v value) any {
	x := readParameterValue(v)
	list, ok := x.([]any)
	if !ok {
		return x
	}
	texts := 0
	for _, item := range list {
		if _, isText := item.(string); isText {
			texts++
		} else if _, isNumber := Number(item, false); !isNumber {
			v.Report("want a list of texts or of numbers")
			return x
		}
	}
	if texts != 0 && texts != len(list) {
		v.Report("want a list of texts or of numbers, not of both")
	}
	return x
}
