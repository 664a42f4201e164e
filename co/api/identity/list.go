package identity

import (
	"context"
	"log/slog"

	"github.com/danielgtaylor/huma/v2"

	"github.com/colonyfleet/colony/co/api/form"
	"github.com/colonyfleet/colony/co/api/problem"
)

// A List returns the first limit sites or nodes of a kind, by id, and how many there are.
type List[T any] func(ctx context.Context, limit int) (list []T, total int, err error)

// A Page is an answer with the first items of a List.
type Page[T any] struct {
	Items []T `json:"items"` // the first ones
	Total int `json:"total" doc:"of which items has the first"`
}

// LimitQuery asks for the first items of a List. It is exported because it is embedded, and huma reads exported
// fields only.
type LimitQuery struct {
	Limit int `query:"limit" default:"100" minimum:"1" maximum:"500" doc:"how many items"`
}

// list adds the route of a List to h. Where the CO enrols no machines, which read nil says, it is empty.
func list[T any](h huma.API, path, summary string, read List[T], log *slog.Logger) {
	huma.Get(h, path, func(ctx context.Context, in *LimitQuery) (*form.Reply[Page[T]], error) {
		if read == nil {
			return page[T](ctx, nil, 0, nil, log)
		}
		items, total, err := read(ctx, in.Limit)
		return page(ctx, items, total, err, log)
	}, form.Describe("fleet", summary))
}

// page answers with what was read, or why it was not.
func page[T any](ctx context.Context, items []T, total int, err error, log *slog.Logger) (*form.Reply[Page[T]], error) {
	if err != nil {
		return nil, problem.Answer(ctx, log, err)
	}
	return &form.Reply[Page[T]]{Body: Page[T]{Items: form.NotNil(items), Total: total}}, nil
}
