package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/colonyfleet/colony/cli/client"
	"github.com/spf13/cobra"
)

// A filter is an option of a list.
type filter struct {
	flag, parameter, help string
	change                func(string) string // of what is given; nil: it is sent as it is
}

// choiceHelp says how a filter takes several values.
const choiceHelp = "; several are separated by commas, and a ! before them picks all others"

// filters are the options of a list that say what is in it.
type filters struct {
	list   []filter
	values []string // of each
	total  bool
}

// newFilters adds options to a command, and --total.
func newFilters(cmd *cobra.Command, list ...filter) *filters {
	f := &filters{list: list, values: make([]string, len(list))}
	for i, v := range list {
		cmd.Flags().StringVar(&f.values[i], v.flag, "", v.help)
	}
	cmd.Flags().BoolVar(&f.total, "total", false, "only say how many there are")
	return f
}

func (f *filters) query() url.Values {
	query := url.Values{}
	for i, v := range f.list {
		text := f.values[i]
		if text == "" {
			continue
		}
		if v.change != nil {
			text = v.change(text)
		}
		query.Set(v.parameter, text)
	}
	return query
}

// A total is how many items a list has.
type total struct {
	Total   int  `json:"total"`
	AtLeast bool `json:"totalAtLeast,omitempty"`
}

// filtered fetches what the filters pick of a list. Where only the total is wanted it prints
// that instead, and done is true.
func filtered[T any](ctx context.Context, a *app, path string, f *filters) (all []T, done bool, err error) {
	query := f.query()
	if !f.total {
		all, err = client.List[T](ctx, a.Client(), path, query)
		return all, err != nil, err
	}
	query.Set("total", "true")
	query.Set("limit", "1")
	var n total
	if err := a.Call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &n); err != nil {
		return nil, true, err
	}
	if done, err := a.Machine(n); done {
		return nil, true, err
	}
	more := ""
	if n.AtLeast {
		more = " or more"
	}
	fmt.Fprintf(a.Out, "%d%s\n", n.Total, more)
	return nil, true, nil
}

func deploymentFilters(cmd *cobra.Command) *filters {
	return newFilters(
		cmd, filter{"site", "site", "only of this site", nil}, filter{"app", "app", "only of this application" + choiceHelp, nil},
		filter{"version", "version", "only where this version is desired" + choiceHelp, nil},
		filter{"state", "state", "only in this state" + choiceHelp, strings.ToUpper}, filter{"text", "q", "only with this text in SITE/NAME", nil},
	)
}

func nodeFilters(cmd *cobra.Command) *filters {
	return newFilters(
		cmd, filter{"site", "site", "only nodes of this site", nil}, filter{"label", "label", "only with this label, KEY=VALUE; of several, separated by commas, all", nil},
		filter{"state", "state", "only online, offline or unknown ones" + choiceHelp, strings.ToLower},
		filter{"version", "version", "only with this version of the agent" + choiceHelp, nil}, filter{"text", "q", "only with this text in SITE/NODE", nil},
	)
}

func siteFilters(cmd *cobra.Command) *filters {
	return newFilters(
		cmd, filter{"online", "online", "true: only sites that are online; false: only the others", strings.ToLower},
		filter{"version", "version", "only with this version of the LO" + choiceHelp, nil}, filter{"text", "q", "only with this text in their name", nil},
	)
}
