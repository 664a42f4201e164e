package machines

import (
	"context"
	"log/slog"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
	"github.com/colonyfleet/colony/co/fleet"
)

// Unenrolled returns the first sites whose LO was never enrolled, and how many there are.
type Unenrolled func(ctx context.Context, limit int) (list []fleet.Unenrolled, total int, err error)

// A ListOfUnenrolled is the answer about sites whose LO was never enrolled.
type ListOfUnenrolled struct {
	Items []fleet.Unenrolled `json:"items"`
	Total int                `json:"total" doc:"of which items has the first"`
}

type unenrolledInput struct {
	Limit int `query:"limit" default:"100" minimum:"1" maximum:"500"`
}

// RegisterUnenrolled adds the route about sites that are not enrolled to h. Where the CO enrols no
// machines, which list nil says, there are none.
func RegisterUnenrolled(h huma.API, list Unenrolled, log *slog.Logger) {
	huma.Get(h, "/api/v1/unenrolled-sites", func(ctx context.Context, in *unenrolledInput) (*form.Reply[ListOfUnenrolled], error) {
		if list == nil {
			return &form.Reply[ListOfUnenrolled]{Body: ListOfUnenrolled{Items: []fleet.Unenrolled{}}}, nil
		}
		items, total, err := list(ctx, in.Limit)
		if err != nil {
			return nil, problem.Answer(ctx, log, err)
		}
		return &form.Reply[ListOfUnenrolled]{Body: ListOfUnenrolled{Items: form.NotNil(items), Total: total}}, nil
	}, form.Describe("fleet", "List the sites whose LO has no certificate, at a CO that wants one"))
}
