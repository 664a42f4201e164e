package protocol

// A Removal is the tombstone of a deployment: the site is to remove it from all nodes.
// The CO drops it only once all nodes that reported the deployment have reported
// DELETED.
type Removal struct {
	// Deployment is the deployment's name.
	Deployment DeploymentName `cbor:"1,keyasint"`
	// Position is that of the SiteDesired which first had the removal, or of the first of
	// a new epoch.
	Position Position `cbor:"2,keyasint"`
	// Volumes says that a person asked to remove the volumes as well. Absent: they outlive
	// the deployment.
	Volumes bool `cbor:"3,keyasint,omitempty"`
	// Signature is the CO's over the removal without Signature: a detached statement of package
	// sign. Absent: the CO does not sign. Since 0.3.0.
	Signature []byte `cbor:"4,keyasint,omitempty"`
}

// A Purge asks to remove a volume that outlived its deployment. It is carried out once,
// and never on a volume of a deployment that the node holds.
type Purge struct {
	// Node is the node that has the volume.
	Node NodeID `cbor:"1,keyasint"`
	// Deployment is the one whose volume it was.
	Deployment DeploymentName `cbor:"2,keyasint"`
	// Volume is its name. Absent: all volumes of the deployment.
	Volume string `cbor:"3,keyasint,omitempty"`
	// Position is that of the SiteDesired which first had the purge.
	Position Position `cbor:"4,keyasint"`
	// Signature is the CO's over the purge without Signature: a detached statement of package sign.
	// Absent: the CO does not sign. Since 0.3.0.
	Signature []byte `cbor:"5,keyasint,omitempty"`
}

// A Decommission asks the LO to forget a node, which a person has removed. It is carried
// out once, and never on a node that is connected. A node that connects afterwards is a new
// one to the LO, with what it holds.
type Decommission struct {
	// Node is the node's id.
	Node NodeID `cbor:"1,keyasint"`
	// Position is that of the SiteDesired which first had it. The LO remembers the greatest
	// that it has carried out.
	Position Position `cbor:"2,keyasint"`
}

// NodeRunning is what a node ran when its site reported last.
type NodeRunning struct {
	// Node is the node's id.
	Node NodeID `cbor:"1,keyasint"`
	// Deployments are sorted. Absent: it ran nothing.
	Deployments []DeploymentName `cbor:"2,keyasint,omitempty"`
}

// A NodeRemoval asks a node to remove a deployment. The node reports DELETED, and the LO
// then leaves it out.
type NodeRemoval struct {
	// Deployment is the deployment's name.
	Deployment DeploymentName `cbor:"1,keyasint"`
	// Site is the Position of the CO's Removal. Absent: the LO itself moved the deployment
	// to another node.
	Site Position `cbor:"2,keyasint,omitzero"`
	// Volumes says that the volumes are removed too, and is never set without Site. Absent:
	// they stay on the node.
	Volumes bool `cbor:"3,keyasint,omitempty"`
	// Signature is the CO's statement that the removal follows from, with its payload in it: the
	// Removal, or where Site is absent the SiteEntry of a deployment that may run on other nodes.
	// Absent: the CO does not sign. Since 0.3.0.
	Signature []byte `cbor:"4,keyasint,omitempty"`
}

// A NodePurge is a Purge for the node.
type NodePurge struct {
	// Deployment is the one whose volume it was.
	Deployment DeploymentName `cbor:"1,keyasint"`
	// Volume is its name. Absent: all volumes of the deployment.
	Volume string `cbor:"2,keyasint,omitempty"`
	// Site is the Position of the CO's Purge. The node carries each one out once: it
	// remembers the greatest position.
	Site Position `cbor:"3,keyasint"`
	// Signature is the CO's statement of the Purge, with its payload in it. Absent: the CO does not
	// sign. Since 0.3.0.
	Signature []byte `cbor:"4,keyasint,omitempty"`
}
