// Package layout says which files of the deployments repo the CO reads. It is pure.
package layout

import (
	"strings"

	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/co/rollout/fleetfile"
	"github.com/colonyfleet/colony/protocol"
)

// Folders are those of the repo that the CO reads.
var Folders = []string{"deployments", "sites", "fleet"}

const (
	wantDeployment, wantSite, wantFleet = "deployments/<site>/<name>/deployment.yaml", "sites/<site>/site.yaml", "fleet/<name>/deployment.yaml"
	// Places are where the CO reads files.
	Places = wantDeployment + ", " + wantFleet + " and " + wantSite
)

// Stray returns why a file of the deployments repo is in no place where the CO reads
// files, and "" where it is in one, or is not meant for the CO.
func Stray(file string) string {
	if strings.HasPrefix(file, "fleet/") {
		return fleetfile.Stray(file)
	}
	parts := strings.Split(file, "/")
	base := parts[len(parts)-1]
	name, yaml := strings.CutSuffix(base, ".yaml")
	if !yaml {
		if name, yaml = strings.CutSuffix(base, ".yml"); !yaml {
			if parts[0] == "deployments" && len(parts) == 4 && fleetfile.Misnamed(base) {
				return "a deployment is read from " + wantDeployment + " only"
			}
			return ""
		}
	}
	_, ofSite := sitefile.SiteOf(file)
	switch {
	case ofSite:
		if _, err := protocol.ParseSiteID(parts[1]); err != nil {
			return err.Error()
		}
		return ""
	case IsDeployment(parts):
		return ""
	case parts[0] == "deployments":
		return "a deployment is read from " + wantDeployment + " only"
	case parts[0] == "sites" && name != "deployment":
		return "a site's file is read from " + wantSite + " only"
	case name == "deployment", name == "site", len(parts) == 1 && !strings.HasPrefix(base, "."):
		return "the CO reads " + Places + " only"
	}
	return ""
}

// Unread is Stray, and returns as well why the content of a file below fleet/ is refused.
func Unread(file string, content []byte) string {
	if strings.HasPrefix(file, "fleet/") {
		return fleetfile.Unread(file, content)
	}
	return Stray(file)
}

// IsDeployment reports whether a path is that of a deployment's file.
func IsDeployment(parts []string) bool {
	return len(parts) == 4 && parts[0] == "deployments" && parts[3] == "deployment.yaml"
}
