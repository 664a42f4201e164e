package metrics

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
)

// TestEveryMetricIsDescribed finds each metric that a field of Metrics holds among those that Describe sends: what counted leaves out is counted and
// never scraped.
func TestEveryMetricIsDescribed(t *testing.T) {
	t.Parallel()
	m := New()
	described := descs(m.Describe)
	found := 0
	var visit func(v reflect.Value, path string)
	visit = func(v reflect.Value, path string) {
		for i := range v.NumField() {
			f, name := v.Field(i), path+v.Type().Field(i).Name
			held := reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem().Interface() // also where it is not exported
			switch held := held.(type) {
			case prometheus.Collector:
				found++
				for d := range descs(held.Describe) {
					if !described[d] {
						t.Errorf("%s: Describe does not send %s", name, d)
					}
				}
			case *prometheus.Desc:
				if found++; !described[held.String()] {
					t.Errorf("%s: Describe does not send %s", name, held)
				}
			default:
				if f.Kind() == reflect.Struct && v.Type().Field(i).Anonymous {
					visit(f, name+".")
				}
			}
		}
	}
	visit(reflect.ValueOf(m).Elem(), "")
	if found < 14 {
		t.Errorf("%d metrics found in the fields: the test looks in the wrong place", found)
	}
}

// descs returns what a collector describes.
func descs(describe func(chan<- *prometheus.Desc)) map[string]bool {
	all := make(chan *prometheus.Desc, 100)
	describe(all)
	close(all)
	found := map[string]bool{}
	for d := range all {
		found[d.String()] = true
	}
	return found
}
