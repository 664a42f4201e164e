package co

import (
	"cmp"
	"context"
	"path/filepath"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/registry"
	"github.com/colonyfleet/colony/co/registry/storage/objects"
)

// openRegistry opens the CO's own registry, in a directory or in a bucket.
func (c *CO) openRegistry(d *db.DB) (*registry.Handler, error) {
	if !c.opts.RegistryObjects.Given() {
		return registry.NewHandler(cmp.Or(c.opts.RegistryDir, filepath.Join(c.opts.StateDir, "registry")), registry.Limits{}, c.log)
	}
	content, cleaning := d.RegistryLocks()
	bucket, err := objects.Open(c.opts.RegistryObjects, content, cleaning)
	if err != nil {
		return nil, err
	}
	c.parts.OnStop("storage of the registry", func(context.Context) error { return bucket.Close() })
	return registry.Open(bucket, registry.Limits{}, c.log)
}
