package v1rc3

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ptr[T any](v T) *T { return &v }

func TestSchemaCheck(t *testing.T) {
	t.Parallel()
	text := Schema{DataType: "string", MinLength: ptr(int64(2)), MaxLength: ptr(int64(4)), RegexMatch: "^[a-zé]+$"}
	integer := Schema{DataType: "integer", MinValue: ptr(1.0), MaxValue: ptr(9.0)}
	double := Schema{DataType: "double", MinValue: ptr(0.5), MinPrecision: ptr(int64(1)), MaxPrecision: ptr(int64(2))}
	choice := Schema{DataType: "string", Options: []any{"a", "b"}}
	several := Schema{DataType: "array[integer]", Options: []any{int64(1), int64(2), int64(3)}, Multiselect: true}
	for name, c := range map[string]struct {
		schema Schema
		value  any
		want   []string
	}{
		"text":               {text, "café", nil},
		"short":              {text, "a", []string{"1 characters are fewer than minLength 2"}},
		"long and wrong":     {text, "ABCDE", []string{"5 characters are more than maxLength 4", `"ABCDE" does not match ^[a-zé]+$`}},
		"empty":              {text, "", []string{"the value is empty"}},
		"empty allowed":      {Schema{DataType: "string", AllowEmpty: true, MinLength: ptr(int64(5))}, "", nil},
		"a map":              {text, map[string]any{}, []string{"want a text, got map[]"}},
		"integer":            {integer, int64(9), nil},
		"integer as text":    {integer, "9", nil},
		"integer of JSON":    {integer, 9.0, nil},
		"json.Number":        {integer, json.Number("9"), nil},
		"hexadecimal":        {double, "0x1p4", []string{`want a number, got "0x1p4"`}},
		"exponent as text":   {double, "1e1", []string{`want a number, got "1e1"`}},
		"exponent in JSON":   {integer, json.Number("8e0"), nil},
		"sign":               {integer, "+5", []string{`want an integer, got "+5"`}},
		"leading zeros":      {integer, "007", []string{`want an integer, got "007"`}},
		"closing zero, JSON": {double, json.Number("1.0"), nil},
		"free list":          {Schema{DataType: "array[string]", MinLength: ptr(int64(1))}, []any{"a", "b"}, nil},
		"free list, wrong":   {Schema{DataType: "array[integer]", MaxValue: ptr(3.0)}, []any{1, 4}, []string{"4 is above maxValue 3"}},
		"fraction":           {integer, 2.5, []string{"want an integer, got 2.5"}},
		"above":              {integer, 10, []string{"10 is above maxValue 9"}},
		"double":             {double, 1.25, nil},
		"double of integer":  {double, int64(1), []string{"1 has fewer than 1 digits after the point"}},
		"closing zero":       {double, "1.0", nil},
		"below":              {double, 0.25, []string{"0.25 is below minValue 0.5"}},
		"precise":            {double, 1.125, []string{"1.125 has more than 2 digits after the point"}},
		"bool":               {Schema{DataType: "boolean"}, false, nil},
		"bool as text":       {Schema{DataType: "boolean"}, "false", nil},
		"no bool":            {Schema{DataType: "boolean"}, "no", []string{`want true or false, got "no"`}},
		"option":             {choice, "b", nil},
		"no option":          {choice, "c", []string{`"c" is none of the options a,b`}},
		"list for a single":  {choice, []any{"a"}, []string{"want one value, got a list"}},
		"several":            {several, []any{1, 3.0}, nil},
		"several, one wrong": {several, []any{1, 4}, []string{"4 is none of the options 1,2,3"}},
		"no list":            {several, 1, []string{"want a list, got 1"}},
		"empty list":         {several, []any{}, []string{"the list is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, c.schema.check(c.value)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateValuesHoldsImmutable(t *testing.T) {
	t.Parallel()
	app := parse(t, "digitron-helm-and-compose.margo.yaml")
	installed := map[string]any{"idpProvider": "aad", "pollFrequency": "60"}
	for name, c := range map[string]struct {
		values map[string]any
		want   string
	}{
		"unchanged":          {map[string]any{"idpProvider": "aad"}, ""},
		"mutable":            {map[string]any{"idpProvider": "aad", "pollFrequency": 120}, ""},
		"changed":            {map[string]any{"idpProvider": "okta"}, `values.idpProvider: this parameter may not change after the first install; it is "aad"`},
		"left out":           {map[string]any{}, `values.idpProvider: this parameter may not change`},
		"default, repeated":  {map[string]any{"idpProvider": "aad", "idpName": "test"}, ""},
		"default, changed":   {map[string]any{"idpProvider": "aad", "idpName": "prod"}, "values.idpName: this parameter may not change"},
		"set for first time": {map[string]any{"idpProvider": "aad", "idpClientId": "1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := app.ValidateValues(c.values, installed)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	if err := app.ValidateValues(map[string]any{"idpProvider": "okta"}, nil); err != nil {
		t.Errorf("first install: %v", err)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]any{
		"": nil, "x": "x", "12": int64(12), "0.1": 0.1, "1000000": 1e6, "true": true, "1,b": []any{int64(1), "b"}, "8": json.Number("8"),
	} {
		if got := Text(value); got != want {
			t.Errorf("Text(%#v) = %q, want %q", value, got, want)
		}
	}
}
