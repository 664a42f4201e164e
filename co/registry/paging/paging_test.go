package paging

import (
	"errors"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCut(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "d"}
	for query, want := range map[string]struct {
		part []string
		link string
	}{
		"":                {all, ""},
		"n=2":             {[]string{"a", "b"}, `</v2/x/tags/list?last=b&n=2>; rel="next"`},
		"n=2&last=b":      {[]string{"d"}, ""},
		"n=1&last=c":      {[]string{"d"}, ""}, // last was removed meanwhile
		"n=3":             {all, ""},
		"n=0":             {[]string{}, ""},
		"last=d":          {[]string{}, ""},
		"n=1&last=a%20b":  {[]string{"b"}, `</v2/x/tags/list?last=b&n=1>; rel="next"`},
		"n=9999999&last=": {all, ""},
	} {
		part, link, err := Cut(&url.URL{Path: "/v2/x/tags/list", RawQuery: query}, all)
		if err != nil {
			t.Errorf("%s: %v", query, err)
		}
		if diff := cmp.Diff(want.part, part); diff != "" {
			t.Errorf("%s: part (-want +got):\n%s", query, diff)
		}
		if link != want.link {
			t.Errorf("%s: link %q, want %q", query, link, want.link)
		}
	}
	for _, query := range []string{"n=-1", "n=x", "n=", "n=1e3", "n=99999999999999999999"} {
		if _, _, err := Cut(&url.URL{RawQuery: query}, all); !errors.Is(err, ErrNumber) {
			t.Errorf("%s: %v, want %v", query, err, ErrNumber)
		}
	}
}
