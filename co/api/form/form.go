// Package form has the forms of requests and answers that several families of routes share.
package form

import (
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

// SitePath names a site. Requests embed it.
type SitePath struct {
	Site string `path:"site" doc:"the site"`
}

// Parse returns the site; the error of a name that no site can have says where it is.
func (p SitePath) Parse() (protocol.SiteID, error) {
	site, err := protocol.ParseSiteID(p.Site)
	return site, problem.At("path.site", err)
}

// NodePath names a node. Requests embed it.
type NodePath struct {
	Site string `path:"site" doc:"the site"`
	Node string `path:"node" doc:"the node, by its name at the site"`
}

// Parse returns site and node; the error of a name that none can have says where it is.
func (p NodePath) Parse() (protocol.SiteID, protocol.NodeID, error) {
	site, err := SitePath{p.Site}.Parse()
	if err != nil {
		return "", "", err
	}
	node, err := protocol.ParseNodeID(p.Node)
	return site, node, problem.At("path.node", err)
}

// PageQuery asks for a page of a list. Requests embed it.
type PageQuery struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many items"`
	Cursor string `query:"cursor" doc:"what the page before gave as next"`
}

// Page returns the page as the stores take it.
func (q PageQuery) Page() fleet.Page { return fleet.Page{Cursor: q.Cursor, Limit: q.Limit} }

// A Reply is an answer with a body.
type Reply[T any] struct{ Body T }

// A Tagged is an answer with a body and its entity tag.
type Tagged[T any] struct {
	ETag string `header:"ETag"`
	Body T
}

// A List is one page.
type List[T any] struct {
	Items []T    `json:"items"` // of this page, in the order of the list
	Next  string `json:"next,omitempty" doc:"cursor of the next page; absent on the last. A page may hold fewer items than its limit though there is a next one"`
	// Total is set where it was asked for.
	Total        *int `json:"total,omitempty" doc:"number of items on all pages; only where it was asked for"`
	TotalAtLeast bool `json:"totalAtLeast,omitempty" doc:"there are more than total: they are not counted to the end"`
}

// Page answers a page.
func Page[T any](items []T, next string) *Reply[List[T]] {
	return &Reply[List[T]]{Body: List[T]{Items: NotNil(items), Next: next}}
}

// NotNil makes a list that JSON shows as [] and not as null.
func NotNil[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}

// ETag is the entity tag of a commit (RFC 9110, section 8.8.3); "" for none.
func ETag(commit string) string {
	if commit == "" {
		return ""
	}
	return `"` + commit + `"`
}

// Matches reports whether If-Match (RFC 9110, section 13.1.1) allows a change of what is at
// commit; an empty one allows each.
func Matches(ifMatch, commit string) bool {
	if ifMatch == "" {
		return true
	}
	for tag := range strings.SplitSeq(ifMatch, ",") {
		if tag = strings.TrimSpace(tag); tag == "*" || tag == ETag(commit) {
			return true
		}
	}
	return false
}

// Describe gives an operation a tag, a summary, and the errors that all have.
func Describe(tag, summary string) func(*huma.Operation) {
	return func(o *huma.Operation) {
		o.Tags = []string{tag}
		o.Summary = summary
		o.Errors = append(o.Errors, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusServiceUnavailable)
		if o.Method == http.MethodPost || o.Method == http.MethodPut || o.Method == http.MethodPatch {
			o.Errors = append(o.Errors, http.StatusBadRequest) // a body that is no JSON
		}
	}
}

// Guarded is a change that If-Match may guard (RFC 9110, section 13.1.1).
func Guarded(o *huma.Operation) {
	o.Errors = append(o.Errors, http.StatusConflict, http.StatusPreconditionFailed)
}
