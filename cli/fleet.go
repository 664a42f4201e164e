package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/colonyfleet/colony/cli/verdict"
	"github.com/colonyfleet/colony/co/fleet"
)

func (a *app) siteCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "site", Short: "Show sites, their links, and the rules of their machine data"}
	cmd.AddCommand(&cobra.Command{
		Use: "list", Short: "List the sites", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sites, err := list[fleet.Site](cmd.Context(), a.client(), "/sites", nil)
			if err != nil {
				return err
			}
			if done, err := a.view().machine(sites); done {
				return err
			}
			var rows [][]string
			for _, s := range sites {
				rows = append(rows, []string{
					string(s.ID), onOff(s.Online), age(s.OnlineSince), verdict.NodesOnline(s),
					strconv.Itoa(s.Deployments), adopted(s.Adopted, s.Generation), age(s.ReportedAt),
				})
			}
			return a.view().table("SITE STATE SINCE NODES DEPLOYMENTS ADOPTED REPORTED", rows)
		},
	}, a.siteShow(), a.siteData())
	return cmd
}

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Show gateways"}
	var site string
	ls := &cobra.Command{
		Use: "list", Short: "List the nodes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if site != "" {
				query.Set("site", site)
			}
			nodes, err := list[fleet.Node](cmd.Context(), a.client(), "/nodes", query)
			if err != nil {
				return err
			}
			if done, err := a.view().machine(nodes); done {
				return err
			}
			var rows [][]string
			for _, n := range nodes {
				row := []string{string(n.Site), string(n.ID), n.State, age(n.ChangedAt), age(n.ReportedAt), "", "", "", pairs(n.Labels)}
				if inv := n.Inventory; inv != nil {
					row[5], row[6], row[7] = inv.Architecture, strconv.Itoa(int(inv.Cores)), size(inv.MemoryBytes)
				}
				rows = append(rows, row)
			}
			return a.view().table("SITE NODE STATE SINCE REPORTED ARCH CORES MEMORY LABELS", rows)
		},
	}
	ls.Flags().StringVar(&site, "site", "", "only nodes of this site")
	cmd.AddCommand(ls, &cobra.Command{
		Use: "show SITE/NODE", Short: "Show one node", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			site, node, err := pair(args[0], "SITE/NODE")
			if err != nil {
				return err
			}
			var n fleet.Node
			if _, err := a.client().call(cmd.Context(), http.MethodGet, "/nodes/"+site+"/"+node, nil, &n); err != nil {
				return err
			}
			if done, err := a.view().machine(n); done {
				return err
			}
			return a.showNode(n)
		},
	})
	return cmd
}

func (a *app) showNode(n fleet.Node) error {
	rows := []string{
		"Node", string(n.Site) + "/" + string(n.ID), "State", n.State, "Since", age(n.ChangedAt), "Site reported", ago(n.ReportedAt), "Agent", n.Version, "Labels", pairs(n.Labels),
	}
	if inv := n.Inventory; inv != nil {
		rows = append(rows, "Hostname", inv.Hostname, "System", inv.OS, "Kernel", inv.Kernel, "Architecture", inv.Architecture,
			"Hardware", strings.TrimSpace(inv.Vendor+" "+inv.Model), "Serial", inv.Serial,
			"CPU", fmt.Sprintf("%s, %d cores", inv.CPUModel, inv.Cores), "Memory", size(inv.MemoryBytes), "Engine", inv.Engine+" "+inv.EngineVersion)
		for _, d := range inv.Disks {
			rows = append(rows, "Disk", fmt.Sprintf("%s %s %s %s", d.Mount, d.Device, d.FileSystem, size(d.TotalBytes)))
		}
		for _, i := range inv.Interfaces {
			rows = append(rows, "Interface", fmt.Sprintf("%s %s %s %s", i.Name, i.Type, i.MAC, strings.Join(i.Addresses, " ")))
		}
		for _, p := range inv.Peripherals {
			rows = append(rows, "Peripheral", strings.TrimSpace(fmt.Sprintf("%s %s %s %s", p.Type, p.Path, p.Manufacturer, p.Model)))
		}
	}
	return a.view().fields(rows...)
}

// pair splits "left/right".
func pair(s, form string) (left, right string, err error) {
	left, right, ok := strings.Cut(s, "/")
	if !ok || left == "" || right == "" || strings.Contains(right, "/") {
		return "", "", usageError{fmt.Errorf("%q: want %s", s, form)}
	}
	return url.PathEscape(left), url.PathEscape(right), nil
}
