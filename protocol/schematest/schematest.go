// Package schematest writes the types of messages as CDDL (RFC 8610), for the tests that hold the schemas to them.
package schematest

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/fxamacker/cbor/v2"
)

// Write writes the group of a message, and of what it is made of, unless it is done.
func Write(b *strings.Builder, typ reflect.Type, done map[reflect.Type]bool) {
	if done[typ] {
		return
	}
	done[typ] = true
	var parts []reflect.Type
	fmt.Fprintf(b, "\n%s = {\n", typ.Name())
	for f := range typ.Fields() {
		tag := f.Tag.Get("cbor")
		key, opts, _ := strings.Cut(tag, ",")
		if key == "-" {
			continue
		}
		optional := "  "
		if strings.Contains(opts, "omit") {
			optional = "? "
		}
		fmt.Fprintf(b, "  %s%s => %s, ; %s\n", optional, key, cddlType(f.Type, &parts), f.Name)
	}
	b.WriteString("}\n")
	for _, p := range parts {
		Write(b, p, done)
	}
}

func cddlType(typ reflect.Type, parts *[]reflect.Type) string {
	switch {
	case typ == reflect.TypeFor[cbor.RawMessage]():
		return "any"
	case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Uint8:
		return "bstr"
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return cddlType(typ.Elem(), parts)
	case reflect.Slice:
		return "[* " + cddlType(typ.Elem(), parts) + "]"
	case reflect.Map:
		return "{* " + cddlType(typ.Key(), parts) + " => " + cddlType(typ.Elem(), parts) + "}"
	case reflect.Struct:
		*parts = append(*parts, typ)
		return typ.Name()
	case reflect.String:
		return "tstr"
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "int"
	case reflect.Float64:
		return "float"
	default:
		return "uint"
	}
}
