package sitedata

import (
	"context"
	"errors"

	"github.com/colonyfleet/colony/co/access"
	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/repo/sitefile"
	"github.com/colonyfleet/colony/protocol"
)

// Devices are the accounts of a site's devices.
type Devices struct {
	Site    protocol.SiteID   `json:"site"`
	Commit  string            `json:"commit,omitempty" doc:"last commit that changed the site's file; absent where there is no file"`
	Devices []sitefile.Device `json:"devices" doc:"sorted by user name; where the file is not valid, the last good ones"`
	Problem string            `json:"problem,omitempty" doc:"why the file is not followed"`
}

func (a *routes) listDevices(ctx context.Context, in *form.SitePath) (*form.Tagged[Devices], error) {
	out, err := a.devices(ctx, in)
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return &form.Tagged[Devices]{ETag: form.ETag(out.Commit), Body: out}, nil
}

func (a *routes) devices(ctx context.Context, in *form.SitePath) (Devices, error) {
	site, err := in.Parse()
	if err != nil {
		return Devices{}, err
	}
	if _, err := a.opts.Fleet.Site(ctx, site); err != nil {
		return Devices{}, err
	}
	content, commit, err := a.siteFile(ctx, site)
	out := Devices{Site: site, Commit: commit, Devices: []sitefile.Device{}}
	if err != nil || len(content) == 0 {
		return out, err
	}
	file, err := sitefile.Parse(site, content)
	if err != nil {
		out.Problem = err.Error()
		recorded, err := a.opts.Rules.SiteData(ctx, site)
		if err != nil {
			return out, err
		}
		file.Devices = recorded.Devices
	}
	out.Devices = sitefile.Devices(file.Devices)
	if !access.May(ctx, access.WriteMachines, site) {
		for i, d := range out.Devices {
			out.Devices[i] = d.WithoutProof()
		}
	}
	return out, nil
}

// DevicePath names a device account of a site. It is exported because it is embedded, and huma reads
// exported fields only.
type DevicePath struct {
	form.SitePath
	User string `path:"user" doc:"user name of the account"`
}

type putDeviceInput struct {
	DevicePath
	Body struct {
		ClientIDs []string          `json:"clientIDs,omitempty" doc:"client ids that it may have, * for any characters; default its user name, and what begins with that and a slash"`
		Publish   []string          `json:"publish,omitempty" doc:"MQTT topic filters of what it may publish"`
		Subscribe []string          `json:"subscribe,omitempty" doc:"MQTT topic filters of what it may receive"`
		Password  sitefile.Password `json:"password" doc:"what proves that a client is the device: one of the two"`
	}
}

func (a *routes) putDevice(ctx context.Context, in *putDeviceInput) (*struct{}, error) {
	site, err := in.Parse()
	if err == nil {
		d := sitefile.Device{
			User: in.User, ClientIDs: in.Body.ClientIDs, Publish: in.Body.Publish, Subscribe: in.Body.Subscribe, Password: in.Body.Password,
		}
		err = a.editFile(ctx, site, "Set the device account "+d.User+" of "+string(site), func(content []byte) ([]byte, error) {
			return sitefile.SetDevice(site, content, d)
		})
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return nil, nil
}

func (a *routes) deleteDevice(ctx context.Context, in *DevicePath) (*struct{}, error) {
	site, err := in.Parse()
	if err == nil {
		err = a.editFile(ctx, site, "Remove the device account "+in.User+" of "+string(site), func(content []byte) ([]byte, error) {
			if len(content) == 0 {
				return nil, sitefile.ErrNoDevice
			}
			return sitefile.RemoveDevice(site, content, in.User)
		})
	}
	if errors.Is(err, sitefile.ErrNoDevice) {
		err = protocol.Errorf(protocol.NotFound, "site %s has no device account %q: see colony site device list %s", site, in.User, site)
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return nil, nil
}

// editFile commits a change of a site's file, unless edit returns what it was given: nothing where there is no file.
func (a *routes) editFile(ctx context.Context, site protocol.SiteID, message string, edit func(content []byte) ([]byte, error)) error {
	return a.onSiteFile(ctx, site, "", func(was []byte, expect string) error {
		content, err := edit(was)
		if err != nil {
			return problem.OfSiteFile(err, true)
		}
		if string(content) == string(was) && (expect != "" || len(was) == 0) {
			return nil
		}
		if _, err := a.opts.Repo.Put(ctx, sitefile.Path(site), content, expect, message); err != nil {
			return err
		}
		a.opts.Changed()
		return nil
	})
}
