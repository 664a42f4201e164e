package fleet

import (
	"github.com/colonyfleet/colony/margo/v1rc3"
	"github.com/colonyfleet/colony/protocol"
)

// ContentDigest returns the digest of what a deployment asks for. What only marks the way
// there, a rollback or a retry, is left out. It is empty where d cannot be encoded.
func ContentDigest(d *v1rc3.Deployment) protocol.Digest {
	c := *d
	if d.Spec.Colony != nil {
		ext := *d.Spec.Colony
		ext.Rollback, ext.Retry = "", 0
		c.Spec.Colony = &ext
	}
	b, err := c.Marshal()
	if err != nil {
		return ""
	}
	return protocol.DigestOf(b)
}

// RolledBack reports whether a deployment is what a person returned to. The mark of a rollback
// stays in the file when the file is edited, and then names other content.
func RolledBack(d *v1rc3.Deployment) bool {
	c := d.Spec.Colony
	return c != nil && c.Rollback != "" && c.Rollback == string(ContentDigest(d))
}
