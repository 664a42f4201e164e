package form

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// An Optional is a value of a request that may be absent, which leaves things as they
// are, or null, which is the zero value: it undoes what was said before.
type Optional[T any] struct {
	Value T
	Set   bool // it was given, or was null
}

// Some returns a value that is given.
func Some[T any](v T) Optional[T] { return Optional[T]{v, true} }

// IsZero reports whether the value is absent.
func (o Optional[T]) IsZero() bool { return !o.Set }

// MarshalJSON writes the value.
func (o Optional[T]) MarshalJSON() ([]byte, error) { return json.Marshal(o.Value) }

// UnmarshalJSON reads the value, or null.
func (o *Optional[T]) UnmarshalJSON(b []byte) error {
	*o = Optional[T]{Set: true}
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	return json.Unmarshal(b, &o.Value)
}

// Schema describes the value, and null.
func (Optional[T]) Schema(r huma.Registry) *huma.Schema {
	s := r.Schema(reflect.TypeFor[T](), true, "")
	s.Nullable = true
	return s
}
