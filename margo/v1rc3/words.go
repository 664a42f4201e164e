package v1rc3

// words are the closed lists of words of a release of the standard, in one place,
// because the next one opens some of them.
type words struct {
	profileTypes          []string
	capacityArchitectures []string // that a deployment may ask for
	operators             []string
	dataTypes             []string // also as array[…]
	cpuArchitectures      []string // that a device may report
	peripherals           []string
	interfaces            []string
	runtimes              []string
	deploymentTypes       []string
}

// rc3 are the words of 1.0.0-rc.3.
var rc3 = words{
	profileTypes:          []string{string(Helm), string(Compose), string(Custom)},
	capacityArchitectures: []string{"amd64", "arm64", "arm", "riscv64", "other"},
	operators: []string{
		string(In), string(NotIn), string(Exists), string(DoesNotExist),
		string(Gt), string(Lt), string(ContainsAll), string(ContainsAny),
	},
	dataTypes:        []string{"string", "integer", "double", "boolean"},
	cpuArchitectures: []string{"amd64", "arm64", "arm", "riscv64", "other"},
	peripherals:      []string{"gpu", "display", "camera", "microphone", "speaker"},
	interfaces:       []string{"ethernet", "wifi", "cellular", "bluetooth", "usb", "canbus", "rs232"},
	runtimes:         []string{"oci", "custom"},
	deploymentTypes:  []string{string(Helm), string(Compose), string(Custom)},
}
