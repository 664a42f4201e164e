// Package intent turns what a user asks for into a file of the deployments repo:
// a Margo ApplicationDeployment (1.0.0-rc.3, with Colony's extension block). It
// is pure: the caller reads and commits the files.
package intent

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// A Request is what a user asks for. In an update, what is zero stays as it is.
type Request struct {
	Profile    string            // id; empty: the first that a Colony node can run
	Node       protocol.NodeID   // empty or AnyNode: the LO chooses
	Selector   map[string]string // labels that a node must have; empty but not nil: none
	Replicas   *uint32           // 0: every node that matches, the default
	Parameters map[string]any    // merged over those of the deployment; nil: the default
	Policy     *v1rc3.Policy     // merged over that of the deployment
}

// AnyNode as the Node of an update ends the choice of one node.
const AnyNode protocol.NodeID = "*"

// Path returns where the file of a deployment is in the deployments repo.
func Path(site protocol.SiteID, name protocol.DeploymentName) string {
	return path.Join("deployments", string(site), string(name), "deployment.yaml")
}

// Folder returns the folder of a deployment in the deployments repo.
func Folder(site protocol.SiteID, name protocol.DeploymentName) string {
	return path.Dir(Path(site, name))
}

// Name returns the name that a deployment of app has unless the user gives one.
// It may be no valid name: the caller parses it.
func Name(app string) protocol.DeploymentName {
	if len(app) > 63 {
		app = strings.Trim(app[len(app)-63:], "-")
	}
	return protocol.DeploymentName(app)
}

// A Target says which deployment is made: ID is a UUID that stays with it.
type Target struct {
	ID   string
	Site protocol.SiteID
	Name protocol.DeploymentName
}

// Create returns a new deployment of app. Wrong input is an error that holds
// v1rc3.Problems.
func Create(app *v1rc3.Application, t Target, req Request) (*v1rc3.Deployment, error) {
	profile, err := choose(app, req.Profile)
	if err != nil {
		return nil, err
	}
	return build(app, profile, t, req, nil)
}

// Update returns prev changed to a version of its application and changed as req
// says. Parameters that req does not set keep their values; those that the new
// version no longer has are dropped. What Colony does not write (labels,
// the namespace, the extensions of others) stays.
func Update(prev *v1rc3.Deployment, app *v1rc3.Application, t Target, req Request) (*v1rc3.Deployment, error) {
	if prev.Spec.ApplicationID != app.ID {
		return nil, protocol.Errorf(protocol.Conflict, "deployment %s/%s is of application %s, not %s: delete it first, or use another name",
			t.Site, t.Name, prev.Spec.ApplicationID, app.ID)
	}
	old := prev.Spec.Colony
	if old == nil {
		old = &v1rc3.Extensions{}
	}
	id := req.Profile
	if id == "" {
		if _, ok := app.Profile(old.Profile); ok {
			id = old.Profile
		}
	}
	profile, err := choose(app, id)
	if err != nil {
		return nil, err
	}
	_, node, _ := prev.Device()
	if req.Node == "" {
		req.Node = protocol.NodeID(node)
	}
	if req.Selector == nil {
		req.Selector = old.Selector
	}
	if req.Replicas == nil {
		req.Replicas = &old.Replicas
	}
	req.Policy = mergePolicy(old.Policy, req.Policy)
	previous := previousValues(prev, app)
	merged := maps.Clone(previous)
	maps.Copy(merged, req.Parameters)
	req.Parameters = merged
	t.ID = prev.ID
	d, err := build(app, profile, t, req, previous)
	if err != nil {
		return nil, err
	}
	d.Spec.Colony.Retry = old.Retry
	d.Metadata.Labels, d.Metadata.Namespace = prev.Metadata.Labels, prev.Metadata.Namespace
	d.Spec.Extensions = prev.Spec.Extensions
	return d, nil
}

// mergePolicy lays what next says over old.
func mergePolicy(old, next *v1rc3.Policy) *v1rc3.Policy {
	if old == nil || next == nil {
		return cmp.Or(next, old)
	}
	return &v1rc3.Policy{
		Attempts: cmp.Or(next.Attempts, old.Attempts),
		Backoff:  cmp.Or(next.Backoff, old.Backoff),
		Rollback: cmp.Or(next.Rollback, old.Rollback),

		MinHealthy: cmp.Or(next.MinHealthy, old.MinHealthy),
		AnyTime:    cmp.Or(next.AnyTime, old.AnyTime),
	}
}

// previousValues returns the values of a deployment for those of its parameters
// that app knows. A deployment holds a list as text, because its target does: it
// becomes a list again, so that the rules of its schema can be checked.
func previousValues(prev *v1rc3.Deployment, app *v1rc3.Application) map[string]any {
	values := map[string]any{}
	for name, p := range prev.Spec.Parameters {
		if _, known := app.Parameters[name]; !known {
			continue
		}
		values[name] = p.Value
		text, isText := p.Value.(string)
		_, schema, ok := app.Setting(name)
		if !ok || !isText || text == "" || !schema.Multiselect && !strings.HasPrefix(schema.DataType, "array[") {
			continue
		}
		var list []any
		for item := range strings.SplitSeq(text, ",") {
			list = append(list, item)
		}
		values[name] = list
	}
	return values
}

// Rollback returns an earlier revision of a deployment, marked so that nodes
// pass through ROLLINGBACK.
func Rollback(now, earlier *v1rc3.Deployment) *v1rc3.Deployment {
	d := *earlier
	d.ID = now.ID
	ext := v1rc3.Extensions{}
	if earlier.Spec.Colony != nil {
		ext = *earlier.Spec.Colony
	}
	ext.Rollback = ""
	if now.Spec.Colony != nil {
		ext.Retry = now.Spec.Colony.Retry
	}
	d.Spec.Colony = &ext
	ext.Rollback = string(fleet.ContentDigest(&d))
	return &d
}

// Retry returns the deployment asking that a refused version be tried again.
func Retry(now *v1rc3.Deployment) *v1rc3.Deployment {
	d := *now
	ext := v1rc3.Extensions{}
	if now.Spec.Colony != nil {
		ext = *now.Spec.Colony
	}
	ext.Retry++
	d.Spec.Colony = &ext
	return &d
}

// Same reports whether two deployments ask for the same: what only marks the way
// there, a rollback or a retry, is left out.
func Same(a, b *v1rc3.Deployment) bool {
	digest := fleet.ContentDigest(a)
	return digest != "" && digest == fleet.ContentDigest(b)
}

// choose returns the profile that id names, or the first one that Colony's nodes run.
func choose(app *v1rc3.Application, id string) (*v1rc3.Profile, error) {
	ids := make([]string, len(app.Profiles))
	for i, p := range app.Profiles {
		ids[i] = p.ID + " (" + string(p.Type) + ")"
		if id == "" && p.Type == v1rc3.Compose {
			id = p.ID
		}
	}
	have := strings.Join(ids, ", ")
	if id == "" {
		return nil, badProfile("application %s has no profile of type compose, and Colony's nodes run no other; it has %s", app.ID, have)
	}
	p, ok := app.Profile(id)
	if !ok {
		return nil, badProfile("application %s has no profile %q; it has %s", app.ID, id, have)
	}
	if p.Type != v1rc3.Compose {
		return nil, badProfile("profile %s is of type %s: Colony's nodes run compose only", id, p.Type)
	}
	return p, nil
}

// badProfile is an error of kind Invalid that says where the input is wrong.
func badProfile(format string, args ...any) error {
	return protocol.Errorf(protocol.Invalid, "%w", v1rc3.Problems{{Path: "profile", Message: fmt.Sprintf(format, args...)}})
}

// build makes the deployment. previous are the values before an update, nil for
// a new deployment.
func build(app *v1rc3.Application, profile *v1rc3.Profile, t Target, req Request, previous map[string]any) (*v1rc3.Deployment, error) {
	if previous != nil {
		if err := app.ValidateValues(req.Parameters, previous); err != nil {
			return nil, err
		}
	}
	node := string(req.Node)
	if node == "" {
		node = string(AnyNode)
	}
	var replicas uint32
	if req.Replicas != nil {
		replicas = *req.Replicas
	}
	return v1rc3.Build(app, profile.ID, req.Parameters, v1rc3.Request{
		ID: t.ID, Name: string(t.Name), DeviceID: string(t.Site) + "/" + node,
		Colony: v1rc3.Extensions{Selector: req.Selector, Replicas: replicas, Policy: req.Policy},
	})
}
