package v1rc3

import (
	"encoding/json"
	"regexp"
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

// The words of a DeviceCapabilitiesManifest.
var (
	cpuArchitectures = []string{"amd64", "arm64", "arm", "riscv64", "other"}
	peripheralTypes  = []string{"gpu", "display", "camera", "microphone", "speaker"}
	interfaceTypes   = []string{"ethernet", "wifi", "cellular", "bluetooth", "usb", "canbus", "rs232"}
	deviceIDPattern  = regexp.MustCompile(`^[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*$`)
)

// ParseCapabilities reads a DeviceCapabilitiesManifest, which is JSON. An error is
// a Problems with everything that is wrong with it.
func ParseCapabilities(doc []byte) (*Capabilities, error) {
	if !json.Valid(doc) {
		return nil, Problems{{Message: "not valid JSON"}}
	}
	top, d, err := read(doc)
	if err != nil {
		return nil, err
	}
	o := top.object("properties", "labels", anyExtension)
	c := &Capabilities{Properties: readDeviceProperties(o.need("properties"))}
	o.extensions()
	l := o.get("labels").object()
	for _, key := range l.keys {
		if c.Labels == nil {
			c.Labels = map[string]any{}
		}
		c.Labels[key] = readLabel(l.fields[key])
	}
	if err := d.problems.err(); err != nil {
		return nil, err
	}
	return c, nil
}

func readDeviceProperties(v value) DeviceProperties {
	o := v.object("id", "vendor", "modelNumber", "serialNumber", "cpus", "memory", "storage", "peripherals", "interfaces",
		"otelCollector", "supportedRuntimes", "supportedDeploymentTypes")
	p := DeviceProperties{
		ID:              o.need("id").match(deviceIDPattern, "a device id such as gateway-1 or gateway-1/child-2"),
		Vendor:          o.need("vendor").text(),
		ModelNumber:     o.need("modelNumber").text(),
		SerialNumber:    o.need("serialNumber").text(),
		Memory:          o.get("memory").text(),
		Storage:         o.get("storage").text(),
		OTelCollector:   o.get("otelCollector").boolean(),
		Runtimes:        readWords(o.get("supportedRuntimes"), "oci", "custom"),
		DeploymentTypes: readWords(o.get("supportedDeploymentTypes"), string(Helm), string(Compose), string(Custom)),
	}
	for _, item := range o.get("cpus").list() {
		f := item.object("cores", "architecture")
		cpu := CPU{Architecture: f.get("architecture").oneOf(cpuArchitectures...)}
		if n := f.need("cores").number(); n != nil {
			cpu.Cores = *n
		}
		p.CPUs = append(p.CPUs, cpu)
	}
	for _, item := range o.get("peripherals").list() {
		f := item.object("type", "manufacturer", "model")
		p.Peripherals = append(p.Peripherals, Peripheral{
			Type:         f.need("type").oneOf(peripheralTypes...),
			Manufacturer: f.get("manufacturer").text(), Model: f.get("model").text(),
		})
	}
	for _, item := range o.get("interfaces").list() {
		p.Interfaces = append(p.Interfaces, Interface{Type: item.object("type").need("type").oneOf(interfaceTypes...)})
	}
	return p
}

// readWords reads a list of at least one word of a closed list.
func readWords(v value, words ...string) []string {
	var all []string
	for _, item := range v.some() {
		all = append(all, item.oneOf(words...))
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
		} else if _, isNumber := asNumber(item, false); !isNumber {
			v.report("want a list of texts or of numbers")
			return x
		}
	}
	if texts != 0 && texts != len(list) {
		v.report("want a list of texts or of numbers, not of both")
	}
	return x
}
