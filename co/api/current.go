package api

import (
	"context"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/repo/intent"
	"github.com/colonyfleet/colony/protocol"
)

// current returns the file of a deployment and its commit, which must be the one
// that ifMatch holds, where that is given (RFC 9110, section 13.1.1). Before it says that there is no such file, or another one,
// it asks the remote: another replica may have made it since this one looked.
func (a *API) current(ctx context.Context, site protocol.SiteID, name protocol.DeploymentName, ifMatch string) (content []byte, commit string, err error) {
	content, commit, err = a.opts.Repo.File(ctx, intent.Path(site, name))
	if protocol.KindOf(err) == protocol.NotFound || err == nil && !form.Matches(ifMatch, commit) {
		if _, err := a.opts.Repo.Sync(ctx); err != nil {
			return nil, "", err
		}
		content, commit, err = a.opts.Repo.File(ctx, intent.Path(site, name))
	}
	if protocol.KindOf(err) == protocol.NotFound {
		return nil, "", a.missing(ctx, site, name)
	}
	if err != nil {
		return nil, "", err
	}
	if !form.Matches(ifMatch, commit) {
		return nil, "", errChanged(site, name)
	}
	return content, commit, nil
}
