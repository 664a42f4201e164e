package fleet

import "github.com/colonyfleet/colony/protocol"

// SiteData is what the site.yaml of a site says.
type SiteData struct {
	// Commit is the last commit that changed the file; empty where there is none.
	Commit string
	// Rules are in the order in which they are tried.
	Rules []DataRule
	// Devices are the accounts of the site's devices, sorted by user name.
	Devices []protocol.DeviceAccount
	// Exec says that programs may be run in containers of the site.
	Exec bool
	// Maintenance is when what runs may be updated and removed; nil: at any time.
	Maintenance *protocol.Maintenance
	// Problem says why the file is not followed; what is above is then the last that was good.
	Problem string
}

// InForce reports whether something of a file stays in force where that is missing.
func (d *SiteData) InForce() bool {
	return len(d.Rules)+len(d.Devices) > 0 || d.Exec || d.Maintenance != nil
}

// Kinds of events that the CO makes of a site.yaml.
const (
	DataRulesChanged = "data_rules_changed" // its data rules
	DataRulesInvalid = "data_rules_invalid" // a bad site.yaml; Message says where
	DevicesChanged   = "devices_changed"    // its device accounts

	MaintenanceChanged = "maintenance_changed" // the maintenance windows of a site
)
