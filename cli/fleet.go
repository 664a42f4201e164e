package cli

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/command"
	"github.com/colonyfleet/colony/cli/commands"
	"github.com/colonyfleet/colony/cli/data"
	"github.com/colonyfleet/colony/cli/devices"
	identitycmd "github.com/colonyfleet/colony/cli/identity"
	"github.com/colonyfleet/colony/cli/output"
	"github.com/colonyfleet/colony/cli/proposals"
	"github.com/colonyfleet/colony/cli/removals"
	"github.com/colonyfleet/colony/cli/sessions"
	"github.com/colonyfleet/colony/cli/verdict"
	"github.com/colonyfleet/colony/co/fleet"
)

func (a *app) siteCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "site", Short: "Add, show and remove sites, show their links, and the rules of their machine data"}
	var f *filters
	ls := &cobra.Command{
		Use: "list", Short: "List the sites", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sites, done, err := filtered[fleet.Site](cmd.Context(), a, "/sites", f)
			if done {
				return err
			}
			if done, err := a.Machine(sites); done {
				return err
			}
			var rows [][]string
			for _, s := range sites {
				rows = append(rows, []string{
					string(s.ID), output.OnOff(s.Online), output.Age(s.OnlineSince), verdict.NodesOnline(s),
					strconv.Itoa(s.Deployments), adopted(s.Adopted, s.Generation), output.Age(s.ReportedAt),
				})
			}
			head := "SITE STATE SINCE NODES DEPLOYMENTS ADOPTED REPORTED"
			if slices.ContainsFunc(sites, func(s fleet.Site) bool { return s.Problem != "" }) {
				head += " PROBLEM"
				for i := range rows {
					rows[i] = append(rows[i], sites[i].Problem)
				}
			}
			return a.Table(head, rows)
		},
	}
	f = siteFilters(ls)
	cmd.AddCommand(ls, identitycmd.SiteAdd(&a.Env), identitycmd.SiteAdopt(&a.Env), identitycmd.SiteRevoke(&a.Env), a.siteShow(), sessions.OfSite(&a.Env), a.siteMaintenance(), data.Rules(&a.Env), devices.Accounts(&a.Env), devices.Broker(&a.Env), proposals.AcceptPosition(&a.Env), removals.Site(&a.Env))
	return cmd
}

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Show, cordon, drain, hold and remove gateways, collect from them, and make join tokens for them"}
	cmd.AddCommand(commands.NodeRestrictions(&a.Env)...)
	var f *filters
	ls := &cobra.Command{
		Use: "list", Short: "List the nodes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, done, err := filtered[fleet.Node](cmd.Context(), a, "/nodes", f)
			if done {
				return err
			}
			if done, err := a.Machine(nodes); done {
				return err
			}
			var rows [][]string
			for _, n := range nodes {
				row := []string{string(n.Site), string(n.ID), n.State, output.Age(n.ChangedAt), output.Age(n.ReportedAt), "", "", "", output.Pairs(n.Labels)}
				if inv := n.Inventory; inv != nil {
					row[5], row[6], row[7] = inv.Architecture, strconv.Itoa(int(inv.Cores)), output.Size(inv.MemoryBytes)
				}
				rows = append(rows, row)
			}
			head := "SITE NODE STATE SINCE REPORTED ARCH CORES MEMORY LABELS"
			if slices.ContainsFunc(nodes, func(n fleet.Node) bool { return len(n.Restrictions) > 0 }) {
				head += " RESTRICTED"
				for i := range rows {
					rows[i] = append(rows[i], verdict.Restricted(nodes[i]))
				}
			}
			if slices.ContainsFunc(nodes, func(n fleet.Node) bool { return n.Problem != "" }) {
				head += " PROBLEM"
				for i := range rows {
					rows[i] = append(rows[i], nodes[i].Problem)
				}
			}
			return a.Table(head, rows)
		},
	}
	f = nodeFilters(ls)
	cmd.AddCommand(ls, identitycmd.NodeToken(&a.Env), identitycmd.NodePending(&a.Env), identitycmd.NodeApprove(&a.Env), identitycmd.NodeReject(&a.Env), identitycmd.NodeRevoke(&a.Env), removals.Node(&a.Env), commands.NodeCheck(&a.Env), commands.NodeRefresh(&a.Env), commands.NodeDiagnostics(&a.Env), commands.NodeFiles(&a.Env), &cobra.Command{
		Use: "show SITE/NODE", Short: "Show one node", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := command.PairPath("/nodes", args[0], "SITE/NODE")
			if err != nil {
				return err
			}
			var n fleet.Node
			if err := a.Call(cmd.Context(), http.MethodGet, path, nil, &n); err != nil {
				return err
			}
			if done, err := a.Machine(n); done {
				return err
			}
			return a.showNode(n)
		},
	})
	return cmd
}

func (a *app) showNode(n fleet.Node) error {
	rows := []string{
		"Node", string(n.Site) + "/" + string(n.ID), "State", n.State, "Since", output.Age(n.ChangedAt), "Site reported", output.Ago(n.ReportedAt), "Agent", n.Version, "Labels", output.Pairs(n.Labels), "Problem", n.Problem, "Removal", removal(n.Decommissioning),
	}
	for i := range n.Restrictions {
		rows = append(rows, "Restricted", verdict.Restriction(&n.Restrictions[i]))
	}
	for _, w := range n.Waits {
		rows = append(rows, "Waits", string(w.Deployment)+": "+w.Why)
	}
	if inv := n.Inventory; inv != nil {
		rows = append(rows, "Hostname", inv.Hostname, "System", inv.OS, "Kernel", inv.Kernel, "Architecture", inv.Architecture,
			"Hardware", strings.TrimSpace(inv.Vendor+" "+inv.Model), "Serial", inv.Serial,
			"CPU", fmt.Sprintf("%s, %d cores", inv.CPUModel, inv.Cores), "Memory", output.Size(inv.MemoryBytes), "Engine", inv.Engine+" "+inv.EngineVersion)
		for _, d := range inv.Disks {
			rows = append(rows, "Disk", fmt.Sprintf("%s %s %s %s", d.Mount, d.Device, d.FileSystem, output.Size(d.TotalBytes)))
		}
		for _, i := range inv.Interfaces {
			rows = append(rows, "Interface", fmt.Sprintf("%s %s %s %s", i.Name, i.Type, i.MAC, strings.Join(i.Addresses, " ")))
		}
		for _, p := range inv.Peripherals {
			rows = append(rows, "Peripheral", strings.TrimSpace(fmt.Sprintf("%s %s %s %s", p.Type, p.Path, p.Manufacturer, p.Model)))
		}
		for _, v := range inv.Volumes {
			rows = append(rows, "Volume kept", fmt.Sprintf("%s of %s, which was removed: %s", v.Name, v.Deployment, output.Size(v.Bytes)))
		}
		if more := int(inv.VolumeCount) - len(inv.Volumes); more > 0 {
			rows = append(rows, "Volume kept", fmt.Sprintf("and %d more", more))
		}
		for _, name := range inv.Unknown {
			rows = append(rows, "Not recorded", fmt.Sprintf("%s: its containers stay until it is deployed once more under this name", name))
		}
		for _, file := range inv.Damaged {
			rows = append(rows, "Damaged", file)
		}
		if inv.ClockUnsynced {
			rows = append(rows, "Clock", "not synchronised: times that the node gives may be wrong")
		}
		if inv.EngineFault != "" {
			rows = append(rows, "Engine fault", inv.EngineFault)
		}
	}
	return a.Fields(rows...)
}

// removal describes the progress of the removal of a node; "": it was not requested.
func removal(d *fleet.Decommissioning) string {
	switch {
	case d == nil:
		return ""
	case d.DoneAt == nil:
		return "asked for " + output.Ago(&d.RequestedAt) + ", the site has not answered yet"
	case d.Refused != "":
		return "refused by the site: " + d.Refused
	default:
		return "it was removed " + output.Ago(d.DoneAt) + ", and has connected again since"
	}
}
