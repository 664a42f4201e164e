package machines

import (
	"context"
	"log/slog"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
)

// A List returns the first limit sites of a kind, by id, and how many there are.
type List[T any] func(ctx context.Context, limit int) (list []T, total int, err error)

// A Page is an answer with the first items of a List.
type Page[T any] struct {
	Items []T `json:"items"`
	Total int `json:"total" doc:"of which items has the first"`
}

type pageInput struct {
	Limit int `query:"limit" default:"100" minimum:"1" maximum:"500"`
}

// list adds the route of a List to h. Where the CO enrols no machines, which read nil says, it is empty.
func list[T any](h huma.API, path, summary string, read List[T], log *slog.Logger) {
	huma.Get(h, path, func(ctx context.Context, in *pageInput) (*form.Reply[Page[T]], error) {
		if read == nil {
			return &form.Reply[Page[T]]{Body: Page[T]{Items: []T{}}}, nil
		}
		items, total, err := read(ctx, in.Limit)
		if err != nil {
			return nil, problem.Answer(ctx, log, err)
		}
		return &form.Reply[Page[T]]{Body: Page[T]{Items: form.NotNil(items), Total: total}}, nil
	}, form.Describe("fleet", summary))
}
