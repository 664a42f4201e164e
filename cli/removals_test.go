package cli

import (
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

func TestVolumeCommands(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	data := fleet.KeptVolume{Site: "berlin", Node: "gw-1", Deployment: "old", Volume: "data", Bytes: 2048, RemovedAt: &at, NodeState: fleet.NodeOnline}
	logs := fleet.KeptVolume{Site: "berlin", Node: "gw-2", Deployment: "old", Volume: "logs", Purging: true, NodeState: fleet.NodeOffline, RemovedAt: &at, Unsynced: true}
	s := serve(t, map[string]any{
		"GET /sites/berlin/volumes":                           api.KeptVolumes{Items: []fleet.KeptVolume{data, logs}, More: 3},
		"GET /sites/berlin/volumes?deployment=old&node=gw-1":  api.KeptVolumes{Items: []fleet.KeptVolume{}},
		"DELETE /nodes/berlin/gw-1/volumes/old?volume=data":   api.KeptVolumes{Items: []fleet.KeptVolume{data}},
		"DELETE /nodes/berlin/gw-1/volumes/old":               api.KeptVolumes{Items: []fleet.KeptVolume{data}},
		"DELETE /nodes/berlin/gw-1/volumes/back":              api.KeptVolumes{Items: []fleet.KeptVolume{data}},
		"DELETE /nodes/berlin/gw-1/volumes/unnamed":           api.KeptVolumes{Items: []fleet.KeptVolume{}},
		"GET /sites/berlin/volumes?deployment=back&node=gw-1": api.KeptVolumes{Items: []fleet.KeptVolume{}},
		"GET /deployments/berlin/back":                        fleet.Deployment{Site: "berlin", Name: "back", Nodes: []fleet.DeploymentNode{{Node: "gw-1", State: lifecycle.Installed}}},
	})
	const head = "NODE DEPLOYMENT VOLUME SIZE KEPT-SINCE STATE"
	wantRun(t, s.URL, "volume list berlin", table(head, "gw-1 old data 2.0 KiB 2026-03-01 12:00:00 kept",
		"gw-2 old logs - 2026-03-01 12:00:00 (not synchronised) being removed once the node is back", "and 3 more, which the nodes do not name"), "", exitOK)
	wantRun(t, s.URL, "volume list berlin/gw-1 --deployment old", table(head), "", exitOK)
	wantRun(t, s.URL, "volume purge berlin/gw-1 old/data", table("berlin/gw-1: volume data of old: the node is asked to remove it"), "", exitOK)
	wantRun(t, s.URL, "volume purge berlin/gw-1 old --all --wait", table("berlin/gw-1: volume data of old: removed"), "", exitOK)
	wantRun(t, s.URL, "volume purge berlin/gw-1 back --all --wait", "", "berlin/gw-1 runs back once more, so that the volumes are in use and stay\n", exitError)
	wantRun(t, s.URL, "volume purge berlin/gw-1 unnamed --all", table("berlin/gw-1 keeps more volumes than it names: it is asked to remove unnamed, if it has that"), "", exitOK)
	wantRun(t, s.URL, "volume purge berlin/gw-1 old", "", "\"old\" names no volume: want DEPLOYMENT/VOLUME, or --all for all volumes of the deployment\n", exitUsage)
	wantRun(t, s.URL, "volume purge berlin/gw-1 old/data --all", "", "--all goes with DEPLOYMENT, not with one volume\n", exitUsage)
	wantRun(t, s.URL, "volume purge berlin old/data", "", "\"berlin\": want SITE/NODE\n", exitUsage)
	wantRun(t, s.URL, "volume purge berlin/gw-1 old/", "", "\"old/\": want DEPLOYMENT/VOLUME, or DEPLOYMENT with --all\n", exitUsage)
	wantRun(t, s.URL, "volume list berlin/a/b", "", "\"berlin/a/b\": want SITE or SITE/NODE\n", exitUsage)
}

func TestNodeRemove(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := serve(t, map[string]any{
		"DELETE /nodes/berlin/gw-1":            api.NodeRemoval{Site: "berlin", Node: "gw-1"},
		"DELETE /nodes/berlin/gw-2?force=true": api.NodeRemoval{Site: "berlin", Node: "gw-2", Runs: []protocol.DeploymentName{"a", "b"}, Named: []protocol.DeploymentName{"c"}},
		"DELETE /nodes/berlin/gw-3":            api.NodeRemoval{Site: "berlin", Node: "gw-3"},
		"GET /nodes/berlin/gw-3":               fleet.Node{Site: "berlin", ID: "gw-3", State: fleet.NodeOnline, Decommissioning: &fleet.Decommissioning{DoneAt: &now, Refused: "it is connected"}},
		"GET /nodes/berlin/gw-4":               fleet.Node{Site: "berlin", ID: "gw-4", State: fleet.NodeOnline, Decommissioning: &fleet.Decommissioning{DoneAt: &now}},
	})
	wantRun(t, s.URL, "node remove berlin/gw-1", table("berlin/gw-1: removed once its site has the next desired state"), "", exitOK)
	wantRun(t, s.URL, "node remove berlin/gw-1 --wait", table("berlin/gw-1: removed"), "", exitOK)
	wantRun(t, s.URL, "node remove berlin/gw-2 --force", table("berlin/gw-2: removed once its site has the next desired state",
		"it ran a, b: replicas are placed on other nodes, where some match",
		"placed on it by its name: c, which waits for a node of this name until it is changed"), "", exitOK)
	wantRun(t, s.URL, "node remove berlin/gw-3 --wait", "", "the site keeps the node: it is connected\n", exitError)
	wantRun(t, s.URL, "node remove berlin", "", "\"berlin\": want SITE/NODE\n", exitUsage)
	wantRun(t, s.URL, "node show berlin/gw-4", table("Node: berlin/gw-4", "State: online", "Site reported: never", "Removal: it was removed 0s ago, and has connected again since"), "", exitOK)
}

func TestSiteRemove(t *testing.T) {
	t.Parallel()
	s := serve(t, map[string]any{
		"DELETE /sites/berlin":           api.SiteRemoval{Site: "berlin", Nodes: 2},
		"DELETE /sites/paris?force=true": api.SiteRemoval{Site: "paris", Nodes: 1, Deployments: []protocol.DeploymentName{"a"}, DataRules: true},
	})
	wantRun(t, s.URL, "site remove berlin --wait", table("berlin: removed, with 2 nodes"), "", exitOK)
	wantRun(t, s.URL, "site remove paris --force", table("paris: is removed once the deployments repo was read, unless an event (site_kept) says why not, with 1 nodes", "removed from the deployments repo, and not from the gateways: a",
		"its data rules are removed from the deployments repo"), "", exitOK)
	wantRun(t, s.URL, "site remove paris", "", "no answer for DELETE /api/v1/sites/paris\n", exitNotFound)
}
