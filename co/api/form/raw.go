package form

import (
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
)

// Raw describes an operation whose answer is not JSON: its status, what it is, and its types. Errors stay problems (RFC 9457).
func Raw(o *huma.Operation, status int, description string, types ...string) {
	answer := &huma.Response{Description: description}
	for _, t := range types {
		if answer.Content == nil {
			answer.Content = map[string]*huma.MediaType{}
		}
		answer.Content[t] = &huma.MediaType{}
	}
	o.Responses = map[string]*huma.Response{strconv.Itoa(status): answer}
	problems := map[string]*huma.MediaType{"application/problem+json": {}}
	for _, status := range append(o.Errors, http.StatusInternalServerError) {
		o.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: problems}
	}
}
