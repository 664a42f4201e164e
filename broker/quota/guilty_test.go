package quota

import (
	"slices"
	"testing"
)

func TestGuilty(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		loads []Load
		limit int64
		want  []int
	}{
		"none":                       {nil, 0, nil},
		"within the limit":           {[]Load{{"a", 5}, {"b", 5}}, 10, nil},
		"the owner that holds most":  {[]Load{{"a", 6}, {"b", 4}, {"b", 3}}, 12, []int{1}},
		"its largest first":          {[]Load{{"a", 6}, {"b", 3}, {"b", 4}, {"b", 5}}, 13, []int{3}},
		"until another holds more":   {[]Load{{"a", 6}, {"b", 4}, {"b", 4}}, 8, []int{2, 0}},
		"who holds nothing stays":    {[]Load{{"a", 0}, {"b", 4}, {"a", 0}}, -1, []int{1}},
		"many small ones go first":   {[]Load{{"honest", 9}, {"x", 4}, {"x", 4}, {"x", 4}, {"x", 4}}, 17, []int{4, 3}},
		"two owners alike, by name":  {[]Load{{"b", 5}, {"a", 5}}, 5, []int{1}},
		"one load above it goes too": {[]Load{{"a", 50}}, 10, []int{0}},
	} {
		if got := Guilty(c.loads, c.limit); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
