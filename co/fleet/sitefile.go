package fleet

import "github.com/colonyfleet/colony/protocol"

// SiteData is what the site.yaml of a site says of its machine data and its devices.
type SiteData struct {
	// Commit is the last commit that changed the file; empty where there is none.
	Commit string
	// Rules are in the order in which they are tried.
	Rules []DataRule
	// Devices are the accounts of the site's devices, sorted by user name.
	Devices []protocol.DeviceAccount
	// Problem says why the file is not followed; Rules and Devices are then the last good ones.
	Problem string
}

// Kinds of events that the CO makes of a site.yaml.
const (
	DataRulesChanged = "data_rules_changed"
	DataRulesInvalid = "data_rules_invalid" // a bad site.yaml; Message says where
	DevicesChanged   = "devices_changed"
)
