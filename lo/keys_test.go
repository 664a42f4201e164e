package lo

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestStatusKeys wants each key of /status in the form of the API, whichever room the field is from, and the unit of a
// duration in its key.
func TestStatusKeys(t *testing.T) {
	t.Parallel()
	form, found := regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`), 0
	var look func(at string, typ reflect.Type)
	look = func(at string, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() {
			return
		}
		for f := range typ.Fields() {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.IsExported() || key == "-" {
				continue
			}
			if f.Anonymous && key == "" {
				look(at, f.Type)
				continue
			}
			found++
			if !form.MatchString(key) {
				t.Errorf("%s%s: the key is %q, want one such as nodeName", at, f.Name, key)
			}
			if f.Type == reflect.TypeFor[time.Duration]() && !strings.HasSuffix(key, "Nanos") {
				t.Errorf("%s%s: the key %q of a duration does not say its unit, nanoseconds", at, f.Name, key)
			}
			look(at+f.Name+".", f.Type)
		}
	}
	look("", reflect.TypeFor[Status]())
	if found < 40 {
		t.Errorf("%d keys found: the test looks in the wrong place", found)
	}
}
