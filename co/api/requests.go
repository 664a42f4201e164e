package api

import (
	"context"
	"net/http"
	"path"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/proposal"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/protocol"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// RequestStore is the record of what people ask for by name, and no commit says.
type RequestStore interface {
	// Request records what is asked for; the desired state of the site follows.
	Request(ctx context.Context, r fleet.Request) error
	// Unrecorded reports whether a node has containers of a deployment without a record.
	Unrecorded(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName) (bool, error)
	// KeptVolumes lists volumes that outlived their deployments; an empty node or
	// deployment means all.
	KeptVolumes(ctx context.Context, site protocol.SiteID, node protocol.NodeID, deployment protocol.DeploymentName) ([]fleet.KeptVolume, error)
	// NodeUse returns what a node runs, and what is placed on it by its name.
	NodeUse(ctx context.Context, site protocol.SiteID, node protocol.NodeID) (fleet.NodeUse, error)
	// SiteUse returns the deployments that a site is to run, or runs.
	SiteUse(ctx context.Context, site protocol.SiteID) ([]protocol.DeploymentName, error)
}

func (a *API) requestRoutes(h huma.API) {
	huma.Get(h, "/api/v1/sites/{site}/volumes", a.listVolumes, form.Describe("fleet", "List the volumes of a site that outlived their deployments"))
	huma.Delete(h, "/api/v1/nodes/{site}/{node}/volumes/{deployment}", a.purgeVolumes,
		form.Describe("fleet", "Remove volumes that outlived their deployment from a node"), func(o *huma.Operation) {
			o.Description = "The node removes them when it has the site's next desired state, or once it is back; nothing brings them back. " +
				"A volume of a deployment that is deployed again before stays."
			o.DefaultStatus = http.StatusAccepted
		})
	huma.Delete(h, "/api/v1/sites/{site}", a.removeSite, form.Describe("fleet", "Remove a site that does not exist any more"), conflicts, func(o *huma.Operation) {
		o.Description = "The CO forgets the site with its nodes and deployments; its history stays for as long as all history, and the name can be used again. " +
			"A site that is online is refused, and so is one with deployments or a file of data rules, unless force is set: their files are then removed from the " +
			"deployments repo. What its gateways run, if they still exist, goes on there. The keys of its LO and nodes are revoked; once it has others it is one of the fleet again."
		o.DefaultStatus = http.StatusAccepted
	})
	huma.Delete(h, "/api/v1/nodes/{site}/{node}", a.removeNode, form.Describe("fleet", "Remove a node that does not exist any more"), conflicts, func(o *huma.Operation) {
		o.Description = "The site forgets the node, and the CO with it; its history stays for as long as all history. A node that is online is refused, " +
			"and so is one that runs deployments, or on which some are placed by its name, unless force is set: replicas are then placed elsewhere, and what the " +
			"gateway runs, if it still exists, goes on there. Its key is revoked; once it has another it is a node of the site again, with what it holds."
		o.DefaultStatus = http.StatusAccepted
	})
}

type deleteInput struct {
	DeploymentPath
	Volumes bool   `query:"volumes" doc:"remove its volumes, too, which else outlive it"`
	IfMatch string `header:"If-Match" doc:"only if what is changed still has this entity tag"`
}

func (a *API) deleteDeployment(ctx context.Context, in *deleteInput) (*struct{}, error) {
	err := a.onTop(ctx, in.DeploymentPath, in.IfMatch, func(t intent.Target, _ []byte, commit string) error {
		message := "Remove " + string(t.Name) + "\n\n" + proposal.ConfirmLine(t.Site, t.Name)
		if in.Volumes {
			message += "\n" + proposal.VolumesLine(t.Site, t.Name)
		}
		_, err := a.put(ctx, t, nil, commit, message)
		return err
	})
	if protocol.KindOf(err) == protocol.NotFound {
		confirmed := a.confirmRemoval(ctx, in.DeploymentPath)
		if confirmed && !in.Volumes {
			return nil, nil
		}
		if done, failed := a.repeatRemoval(ctx, in); done || failed != nil {
			err = failed
		} else if confirmed {
			err = nil
		}
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return nil, nil
}

// confirmRemoval agrees to remove a deployment whose file is removed already, where that
// is held, and reports whether it was.
func (a *API) confirmRemoval(ctx context.Context, p DeploymentPath) bool {
	site, name, err := p.parse()
	if err != nil || a.opts.Proposals.ConfirmRemoval(ctx, site, name, "the deletion of "+string(name)) != nil {
		return false
	}
	a.opts.Changed()
	return true
}

// repeatRemoval asks once more for the removal of a deployment that the deployments repo does
// not have, where nodes hold something of it. It reports whether that is so.
func (a *API) repeatRemoval(ctx context.Context, in *deleteInput) (bool, error) {
	site, name, err := in.parse()
	if err != nil {
		return false, err
	}
	d, err := a.opts.Deployments.Deployment(ctx, site, name)
	if err != nil && protocol.KindOf(err) != protocol.NotFound {
		return false, err
	}
	held := err == nil && slices.ContainsFunc(d.Nodes, func(n fleet.DeploymentNode) bool { return n.State != lifecycle.Deleted })
	if !held {
		if held, err = a.opts.Requests.Unrecorded(ctx, site, name); err != nil {
			return false, err
		}
	}
	if !held && in.Volumes {
		volumes, err := a.opts.Requests.KeptVolumes(ctx, site, "", name)
		if err != nil {
			return false, err
		}
		held = len(volumes) > 0
	}
	if !held {
		return false, nil
	}
	err = a.opts.Requests.Request(ctx, fleet.Request{Site: site, Kind: fleet.RequestRemoval, Deployment: name, Volumes: in.Volumes})
	if err == nil {
		a.opts.Changed()
	}
	return true, err
}

type volumesInput struct {
	form.SitePath
	Node       string `query:"node" doc:"only those on this node"`
	Deployment string `query:"deployment" doc:"only those of this deployment"`
}

// KeptVolumes are the volumes of a site that outlived their deployments.
type KeptVolumes struct {
	Items []fleet.KeptVolume `json:"items"` // of the nodes of the site
	// More counts those that nodes have and do not name: a node names 256.
	More int `json:"more,omitempty" doc:"volumes that nodes have and do not name: each names 256 at most"`
}

func (a *API) listVolumes(ctx context.Context, in *volumesInput) (*form.Reply[KeptVolumes], error) {
	site, err := in.Parse()
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	node, deployment := protocol.NodeID(in.Node), protocol.DeploymentName(in.Deployment)
	if in.Node != "" {
		if _, err := a.node(ctx, site, node); err != nil {
			return nil, a.fail(ctx, err)
		}
	} else if _, err := a.opts.Fleet.Site(ctx, site); err != nil {
		return nil, a.fail(ctx, err)
	}
	list, err := a.opts.Requests.KeptVolumes(ctx, site, node, deployment)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	more, err := a.unnamedVolumes(ctx, site, node)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Reply[KeptVolumes]{Body: KeptVolumes{form.NotNil(list), more}}, nil
}

// unnamedVolumes counts the volumes that nodes have and do not name.
func (a *API) unnamedVolumes(ctx context.Context, site protocol.SiteID, node protocol.NodeID) (more int, err error) {
	page := fleet.Page{Limit: fleet.MaxLimit}
	for {
		nodes, next, err := a.opts.Fleet.Nodes(ctx, fleet.NodeFilter{Site: site}, page)
		if err != nil {
			return 0, err
		}
		for _, n := range nodes {
			if n.Inventory != nil && (node == "" || n.ID == node) {
				more += max(0, int(n.Inventory.VolumeCount)-len(n.Inventory.Volumes))
			}
		}
		if next == "" {
			return more, nil
		}
		page.Cursor = next
	}
}

type purgeInput struct {
	form.NodePath
	Deployment string `path:"deployment" doc:"the deployment that the volumes are of"`
	Volume     string `query:"volume" doc:"only this one; default all of the deployment"`
}

func (a *API) purgeVolumes(ctx context.Context, in *purgeInput) (*form.Reply[KeptVolumes], error) {
	site, node, err := in.Parse()
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	name, err := protocol.ParseDeploymentName(in.Deployment)
	if err != nil {
		return nil, a.fail(ctx, problem.At("path.deployment", err))
	}
	n, err := a.node(ctx, site, node)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	held, err := a.opts.Requests.KeptVolumes(ctx, site, node, name)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	var asked []fleet.KeptVolume
	for _, v := range held {
		if in.Volume == "" || v.Volume == in.Volume {
			v.Purging = true
			asked = append(asked, v)
		}
	}
	unnamed := n.Inventory != nil && int(n.Inventory.VolumeCount) > len(n.Inventory.Volumes)
	if len(asked) == 0 && !unnamed {
		what := "volume"
		if in.Volume != "" {
			what += " " + in.Volume
		}
		return nil, a.fail(ctx, protocol.Errorf(protocol.NotFound,
			"node %s/%s keeps no %s of deployment %s, of which it keeps %s; a volume that a deployment has is not kept but in use, and goes with it: colony deployment delete --volumes",
			site, node, what, name, orNone(held, func(v fleet.KeptVolume) string { return v.Volume })))
	}
	err = a.opts.Requests.Request(ctx, fleet.Request{Site: site, Kind: fleet.RequestPurge, Node: node, Deployment: name, Volume: in.Volume})
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	a.opts.Changed()
	return &form.Reply[KeptVolumes]{Body: KeptVolumes{Items: form.NotNil(asked)}}, nil
}

type removeNodeInput struct {
	form.NodePath
	Force bool `query:"force" doc:"also where deployments run there, or are placed on it by its name"`
}

// A NodeRemoval says what goes with a node.
type NodeRemoval struct {
	Site  protocol.SiteID           `json:"site"`
	Node  protocol.NodeID           `json:"node"`
	Runs  []protocol.DeploymentName `json:"runs" doc:"what it ran: replicas are placed on other nodes, where some match"`
	Named []protocol.DeploymentName `json:"named" doc:"deployments that the repo places on it by its name: they wait for a node of this name, until they are changed"`
}

func (a *API) removeNode(ctx context.Context, in *removeNodeInput) (*form.Reply[NodeRemoval], error) {
	site, node, err := in.Parse()
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	n, err := a.node(ctx, site, node)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	if n.State == fleet.NodeOnline {
		return nil, a.fail(ctx, protocol.Errorf(protocol.Conflict,
			"node %s/%s is online: stop its agent, or the gateway, first; while it is connected it is a node of the site", site, node))
	}
	use, err := a.opts.Requests.NodeUse(ctx, site, node)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	if !in.Force && len(use.Runs)+len(use.Named) > 0 {
		name := func(v protocol.DeploymentName) string { return string(v) }
		return nil, a.fail(ctx, protocol.Errorf(protocol.Conflict,
			"node %s/%s is in use: it runs %s; placed on it by its name: %s. Remove or move them first, or remove the node with force: its replicas are then placed on other nodes",
			site, node, orNone(use.Runs, name), orNone(use.Named, name)))
	}
	if err := a.opts.Requests.Request(ctx, fleet.Request{Site: site, Kind: fleet.RequestDecommission, Node: node}); err != nil {
		return nil, a.fail(ctx, err)
	}
	a.opts.Changed()
	return &form.Reply[NodeRemoval]{Body: NodeRemoval{site, node, form.NotNil(use.Runs), form.NotNil(use.Named)}}, nil
}

func orNone[T any](items []T, name func(T) string) string {
	if len(items) == 0 {
		return "nothing"
	}
	return names(items, name)
}

type removeSiteInput struct {
	form.SitePath
	Force bool `query:"force" doc:"also where it has deployments or data rules: their files are removed from the deployments repo"`
}

// A SiteRemoval says what goes with a site.
type SiteRemoval struct {
	Site        protocol.SiteID           `json:"site"`
	Nodes       int                       `json:"nodes"` // how many are removed with it
	Deployments []protocol.DeploymentName `json:"deployments" doc:"what it was to run, or ran as far as the CO knows"`
	DataRules   bool                      `json:"dataRules" doc:"it had rules of machine data"`
}

func (a *API) removeSite(ctx context.Context, in *removeSiteInput) (*form.Reply[SiteRemoval], error) {
	id, err := in.Parse()
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	site, err := a.opts.Fleet.Site(ctx, id)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	if site.Online {
		return nil, a.fail(ctx, protocol.Errorf(protocol.Conflict,
			"site %s is online: stop its LO first; while it is connected it is a site of the fleet", id))
	}
	out := SiteRemoval{Site: id, Nodes: site.Nodes}
	if out.Deployments, err = a.opts.Requests.SiteUse(ctx, id); err != nil {
		return nil, a.fail(ctx, err)
	}
	if _, err = a.opts.Repo.Sync(ctx); err != nil { // another replica may have set rules
		return nil, a.fail(ctx, err)
	}
	_, _, err = a.opts.Repo.File(ctx, sitefile.Path(id))
	if out.DataRules = err == nil; err != nil && protocol.KindOf(err) != protocol.NotFound {
		return nil, a.fail(ctx, err)
	}
	if inUse := len(out.Deployments) > 0 || out.DataRules; inUse && !in.Force {
		rules := "it has no data rules"
		if out.DataRules {
			rules = "it has data rules"
		}
		return nil, a.fail(ctx, protocol.Errorf(protocol.Conflict,
			"site %s is in use: its deployments are %s; %s. Delete them first, or remove the site with force: their files are then removed from the deployments repo",
			id, orNone(out.Deployments, func(v protocol.DeploymentName) string { return string(v) }), rules))
	}
	if in.Force {
		folders := []string{"deployments/" + string(id), path.Dir(sitefile.Path(id))}
		if err := a.opts.Repo.RemoveAll(ctx, folders, "Remove site "+string(id)+"\n\n"+proposal.SiteLine(id)); err != nil {
			return nil, a.fail(ctx, err)
		}
	}
	if err := a.opts.Requests.Request(ctx, fleet.Request{Site: id, Kind: fleet.RequestSite}); err != nil {
		return nil, a.fail(ctx, err)
	}
	a.opts.Changed()
	out.Deployments = form.NotNil(out.Deployments)
	return &form.Reply[SiteRemoval]{Body: out}, nil
}
