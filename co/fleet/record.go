package fleet

import "github.com/colonyfleet/colony/protocol"

// A SiteRecord is what is recorded as desired of a site.
type SiteRecord struct {
	Site    protocol.SiteID
	Desired []Desired // by name, without what was removed
	Data    SiteData
	// Message is what was published last; its generation is 0 where nothing ever was.
	Message protocol.SiteDesired
}

// A SiteWant is what the deployments repo wants of a site: all deployments that stand there,
// and what its site.yaml says.
type SiteWant struct {
	Site    protocol.SiteID
	Desired []Desired
	Data    SiteData
	// Files says that the deployments repo has files for the site, or something else holds what it runs than its removal, so that a
	// pending removal of the site is cancelled. Otherwise it stays pending: it may have been requested since the repo was compared with
	// the record.
	Files bool
}

// A SiteSaved is the outcome of recording a SiteWant.
type SiteSaved struct {
	// Message is what is to be published, with the specs in it.
	Message protocol.SiteDesired
	// Changed says that Message differs from the one before.
	Changed bool
	// Err is set where nothing was recorded.
	Err error
}

// A SiteBody is an encoded SiteDesired that a site finds under its digest.
type SiteBody struct {
	Site   protocol.SiteID
	Digest protocol.Digest
	Body   []byte
}
