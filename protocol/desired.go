package protocol

// SiteDesired is everything that should run at one site: whole state, retained
// on the site's topic. A deployment that neither Deployments nor Removals names is left
// as it is: absence says nothing. Keys 2 and 3 were Generation and a textual Epoch.
type SiteDesired struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Site is the site that it is for.
	Site SiteID `cbor:"1,keyasint"`

	// Position grows with each change. An LO adopts only a greater one than it holds.
	// Absent in no message.
	Position Position `cbor:"9,keyasint,omitzero"`

	// Commit is the commit of the deployments repo that this was compiled from. Absent: it
	// was not compiled from a repo.
	Commit string `cbor:"4,keyasint,omitempty"`

	// Deployments are what the site shall run, sorted by name. Absent: nothing is desired.
	Deployments []SiteEntry `cbor:"5,keyasint,omitempty"`

	// Removals are what the site shall remove, sorted by name; no name of Deployments is
	// among them. Absent: nothing is to be removed.
	Removals []Removal `cbor:"10,keyasint,omitempty"`

	// Purges are volumes to remove that no deployment uses, sorted by node, deployment and
	// volume. Absent: there are none.
	Purges []Purge `cbor:"11,keyasint,omitempty"`

	// Running is what the nodes of the site ran as far as the CO knows, sorted by node. The
	// CO sets it where an LO that had adopted a state reports to hold none: the LO counts
	// it until the nodes report themselves. Absent: the LO knows it better.
	Running []NodeRunning `cbor:"12,keyasint,omitempty"`

	// Data are the rules of the site's machine data, in the order in which they are tried.
	// Absent: the site has none.
	Data []DataRule `cbor:"6,keyasint,omitempty"`

	// Decommissions are nodes to forget, sorted by node. Absent: there are none.
	Decommissions []Decommission `cbor:"14,keyasint,omitempty"`

	// Devices are the accounts of the site's devices, sorted by user name. Absent: there are
	// none.
	Devices []DeviceAccount `cbor:"15,keyasint,omitempty"`

	// Maintenance says when what runs may be updated and removed. Absent: at any time. Since 0.3.0.
	Maintenance *Maintenance `cbor:"18,keyasint,omitempty"`

	// Digest is set where the state is too large to be sent with each connection. It is the digest
	// of an encoded SiteDesired of the same site and position, which has all lists; Size is its
	// length in bytes. An LO that holds the position needs nothing. Any other LO fetches that
	// message by Digest, and the specs that are not inside by their digests. Absent: the state is
	// complete.
	Digest Digest `cbor:"7,keyasint,omitempty"`
	// Size is absent where Digest is.
	Size uint64 `cbor:"8,keyasint,omitempty"`

	// Content is the ContentDigest of the state. The LO repeats it to say what it holds: it cannot
	// compute the digest over fields that a later release of the CO sends. Absent: the LO computes
	// it.
	Content Digest `cbor:"13,keyasint,omitempty"`

	// Head is the CO's signature over the whole message, and KeySet are the CO's signing keys,
	// signed by its root key: statements of package sign. Where Digest is set both stand in what
	// that names. Absent: the CO does not sign. Since 0.3.0.
	Head []byte `cbor:"16,keyasint,omitempty"`
	// KeySet is absent where Head is. Since 0.3.0.
	KeySet []byte `cbor:"17,keyasint,omitempty"`
}

func (m *SiteDesired) version() uint16 { return m.V }

// A SiteEntry is one deployment of a site: what to run, where, and what to do
// when it fails. Only the spec decides whether containers are replaced.
type SiteEntry struct {
	// Deployment is the deployment's name, unique at the site.
	Deployment DeploymentName `cbor:"1,keyasint"`

	// Digest is the digest of the encoded DeploymentSpec, Size its length in bytes.
	Digest Digest `cbor:"2,keyasint"`
	// Size is in bytes.
	Size uint64 `cbor:"3,keyasint"`

	// Spec is the encoded DeploymentSpec. Nil means: fetch it by Digest.
	Spec []byte `cbor:"4,keyasint,omitempty"`

	// Signature is the CO's over the entry without Spec and Signature: a detached statement of
	// package sign. Absent: the CO does not sign.
	Signature []byte `cbor:"5,keyasint,omitempty"`

	// Placement says which nodes run it.
	Placement Placement `cbor:"6,keyasint"`
	// Policy says what follows on a failure.
	Policy Policy `cbor:"7,keyasint"`

	// Rollback says that a person asked to return to this earlier version, so that nodes
	// pass through ROLLINGBACK and not UPDATING. Absent: it is an update.
	Rollback bool `cbor:"8,keyasint,omitempty"`

	// Retry grows each time a person asks to try a refused version again; a greater number lifts
	// the refusal. Absent: no retry was asked for.
	Retry uint32 `cbor:"9,keyasint,omitempty"`

	// Position is that of the SiteDesired in which the entry changed last, or of the first
	// of a new epoch. Absent in no message.
	Position Position `cbor:"10,keyasint,omitzero"`
}

// Placement says which nodes of the site run a deployment. All that is given
// must hold.
type Placement struct {
	// Node names the one node, for a deployment made for it. Empty: any.
	Node NodeID `cbor:"1,keyasint,omitempty"`

	// Selector holds labels that a node must have with these values. Nil: any node.
	Selector map[string]string `cbor:"2,keyasint,omitempty"`

	// Replicas is how many nodes run it. 0 means every node that matches.
	Replicas uint32 `cbor:"3,keyasint,omitempty"`

	// Constraints is a Margo deviceConstraints object (1.0.0-rc.3) as JSON. Absent: none.
	Constraints []byte `cbor:"4,keyasint,omitempty"`
}

// Policy says what the LO does about a failure.
type Policy struct {
	// Attempts is how often one version is tried on a node before it is given
	// up, at least 1. 0 means the default, 3.
	Attempts uint32 `cbor:"1,keyasint,omitempty"`

	// BackoffMillis is the wait before the second attempt, in milliseconds; it doubles with each
	// further one, with jitter, up to 5 minutes. 0 means the default, 10 s.
	BackoffMillis uint32 `cbor:"2,keyasint,omitempty"`

	// NoRollback leaves a version that was given up FAILED instead of returning to the
	// last healthy one. Absent: the node returns to it.
	NoRollback bool `cbor:"3,keyasint,omitempty"`

	// MinHealthyMillis is how long the version must be up on a node before no later failure
	// ends it, in milliseconds. 0 means the node's own, 2 minutes by default.
	MinHealthyMillis uint32 `cbor:"4,keyasint,omitempty"`

	// AnyTime has updates carried out outside of the site's maintenance windows, too. Absent: they
	// wait for one. Since 0.3.0.
	AnyTime bool `cbor:"5,keyasint,omitempty"`
}

// NodeDesired is everything that should run on one node: whole state, retained
// on the node's topic. A deployment that neither Assignments nor Removals names is left
// as it is: absence says nothing. Keys 2 and 3 were Generation and a textual Epoch.
type NodeDesired struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// Node is the node that it is for.
	Node NodeID `cbor:"1,keyasint"`

	// Position grows with each change. An EN adopts only a greater one than it holds.
	// Absent in no message.
	Position Position `cbor:"5,keyasint,omitzero"`

	// Assignments are sorted by deployment name. Absent: nothing is assigned.
	Assignments []Assignment `cbor:"4,keyasint,omitempty"`

	// Removals are sorted by deployment name; no name of Assignments is among them. Absent:
	// nothing is to be removed.
	Removals []NodeRemoval `cbor:"6,keyasint,omitempty"`

	// Purges are sorted by deployment and volume. Absent: there are none.
	Purges []NodePurge `cbor:"7,keyasint,omitempty"`

	// Content is the ContentDigest of the state, which the node repeats as what it holds.
	// Absent: the node computes it.
	Content Digest `cbor:"8,keyasint,omitempty"`

	// KeySet is that of the SiteDesired that the LO holds. Absent: the CO does not sign. Since
	// 0.3.0.
	KeySet []byte `cbor:"9,keyasint,omitempty"`

	// Certificates are the LO's, its own first and without the root, in DER (X.509). Absent: the LO does
	// not sign. Since 0.3.0.
	Certificates [][]byte `cbor:"10,keyasint,omitempty"`

	// Signature is the statement of the LO over all else, by the key of its certificate. Absent: the LO
	// does not sign; a node that has followed a signed one of its site refuses it. Since 0.3.0.
	Signature []byte `cbor:"11,keyasint,omitempty"`
}

func (m *NodeDesired) version() uint16 { return m.V }

// An Assignment is one version of a deployment that a node is to run.
type Assignment struct {
	// Deployment is the deployment's name.
	Deployment DeploymentName `cbor:"1,keyasint"`
	// Digest is the digest of Spec.
	Digest Digest `cbor:"2,keyasint"`
	// Spec is the encoded DeploymentSpec.
	Spec []byte `cbor:"3,keyasint"`
	// Signature is the CO's statement of a SiteEntry that has the digest, with its payload in
	// it: the one in force, or an earlier one where the node is to return to it. Absent:
	// the CO does not sign.
	Signature []byte `cbor:"4,keyasint,omitempty"`

	// Attempt counts the tries of this digest on this node, from 1. A node that
	// failed attempt n begins again only when it sees n+1.
	Attempt uint32 `cbor:"5,keyasint"`

	// Rollback makes the node pass through ROLLINGBACK to this version. Absent: it is an
	// update.
	Rollback bool `cbor:"6,keyasint,omitempty"`

	// Site is the Position of the SiteEntry that it follows from. Absent: the LO does not
	// know it any more.
	Site Position `cbor:"7,keyasint,omitzero"`

	// MinHealthyMillis is that of the Policy, in milliseconds. Absent: the node's own.
	MinHealthyMillis uint32 `cbor:"8,keyasint,omitempty"`

	// NoRollback is that of the Policy. Absent: while an update that failed waits for its next
	// attempt, the node runs the last healthy version. Since 0.3.0.
	NoRollback bool `cbor:"9,keyasint,omitempty"`

	// Refused is the version that was given up on the node, and in whose place this one is assigned. The node keeps it on record, and
	// reports it. Absent: none, or it is not known. Since 0.3.0.
	Refused Digest `cbor:"10,keyasint,omitempty"`
}

// DeploymentSpec is one version of a deployment, compiled by the CO: independent
// of the node, images pinned by digest, parameters filled in. The digest of its
// encoding is the identity of the version: a node begins an update when, and only
// when, it changes. The update replaces the containers whose own part changed.
type DeploymentSpec struct {
	V uint16 `cbor:"0,keyasint"` // protocol version, see Version
	// ID is the Margo deployment id, a UUID.
	ID string `cbor:"1,keyasint"`
	// Deployment is the deployment's name.
	Deployment DeploymentName `cbor:"2,keyasint"`
	// App is the id of the Margo application.
	App string `cbor:"3,keyasint"`
	// AppVersion is its version.
	AppVersion string `cbor:"4,keyasint"`
	// Profile is the id of the deployment profile that was chosen; absent: the deployment names
	// none.
	Profile string `cbor:"5,keyasint,omitempty"`

	// Components are installed in this order.
	Components []Component `cbor:"6,keyasint"`
}

func (m *DeploymentSpec) version() uint16 { return m.V }

// A Component is one Margo component: here a Compose project.
type Component struct {
	// Name is the Margo component's.
	Name string `cbor:"1,keyasint"`
	// Revision is its version; absent: it has none.
	Revision string `cbor:"2,keyasint,omitempty"`

	// NoWait starts the next component without waiting for this one's health. Absent: it
	// waits.
	NoWait bool `cbor:"3,keyasint,omitempty"`

	// TimeoutMillis bounds the way to health, in milliseconds, pulls left out. 0 means 5 minutes.
	TimeoutMillis uint64 `cbor:"4,keyasint,omitempty"`

	// Containers are in start order: a container comes after those it depends on.
	Containers []Container `cbor:"5,keyasint"`
}
