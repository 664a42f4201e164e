package v1rc3

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text returns a parameter value as text, which is what an environment variable
// holds. The elements of a list are joined with commas.
func Text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case float32:
		return strconv.FormatFloat(float64(v), 'f', -1, 32)
	}
	if list := reflect.ValueOf(value); list.Kind() == reflect.Slice {
		parts := make([]string, list.Len())
		for i := range parts {
			parts[i] = Text(list.Index(i).Interface())
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(value)
}

// convert returns x as the Go type of a scalar data type: string, int64, float64
// or bool. Numbers and bools may come as text, as forms and other tools send them.
func convert(dataType string, x any) (any, error) {
	if n, ok := x.(json.Number); ok {
		x = plainNumber(n)
	}
	text, isText := x.(string)
	rv := reflect.ValueOf(x)
	switch dataType {
	case "string":
		if x != nil && (isText || rv.Kind() != reflect.Slice && rv.Kind() != reflect.Map && rv.Kind() != reflect.Struct) {
			return Text(x), nil
		}
		return nil, fmt.Errorf("want a text, got %v", x)
	case "boolean":
		if b, ok := x.(bool); ok {
			return b, nil
		}
		if text == "true" || text == "false" {
			return text == "true", nil
		}
		return nil, fmt.Errorf("want true or false, got %s", quoted(x))
	case "integer":
		return convertInteger(x, rv)
	case "double":
		if isText {
			// ParseFloat knows more forms, such as 0x1p4 and +5, than applications do.
			if f, err := strconv.ParseFloat(text, 64); err == nil && decimal.MatchString(text) {
				return f, nil
			}
		} else if rv.CanFloat() && !math.IsNaN(rv.Float()) && !math.IsInf(rv.Float(), 0) {
			return rv.Float(), nil
		} else if rv.CanInt() {
			return float64(rv.Int()), nil
		} else if rv.CanUint() {
			return float64(rv.Uint()), nil
		}
		return nil, fmt.Errorf("want a number, got %s", quoted(x))
	default:
		return nil, fmt.Errorf("dataType %q is not known", dataType)
	}
}

// decimal is a number as people write it, without an exponent: all programs that
// read an environment variable take it for the same.
var decimal = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// plainNumber returns n as text where it is a plain decimal number, so that its
// digits are kept, and else as a number.
func plainNumber(n json.Number) any {
	if decimal.MatchString(n.String()) {
		return n.String()
	}
	f, err := n.Float64()
	if err != nil {
		return n.String()
	}
	return f
}

func convertInteger(x any, rv reflect.Value) (any, error) {
	switch {
	case rv.Kind() == reflect.String:
		if n, err := strconv.ParseInt(rv.String(), 10, 64); err == nil && decimal.MatchString(rv.String()) {
			return n, nil
		}
	case rv.CanInt():
		return rv.Int(), nil
	case rv.CanUint() && rv.Uint() <= math.MaxInt64:
		return int64(rv.Uint()), nil
	case rv.CanFloat() && rv.Float() == math.Trunc(rv.Float()) && math.Abs(rv.Float()) < 1<<53:
		return int64(rv.Float()), nil // what JSON makes of an integer
	}
	return nil, fmt.Errorf("want an integer, got %s", quoted(x))
}

func quoted(x any) string {
	if s, ok := x.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(x)
}

// check returns what is wrong with a value, each as the end of a sentence.
func (s Schema) check(x any) []string {
	if x == nil || x == "" {
		if s.AllowEmpty {
			return nil
		}
		return []string{"the value is empty"}
	}
	list := reflect.ValueOf(x)
	if list.Kind() != reflect.Slice {
		if s.isArray() {
			return []string{"want a list, got " + quoted(x)}
		}
		return s.checkOne(x)
	}
	if !s.isArray() && !s.Multiselect {
		return []string{"want one value, got a list"}
	}
	if list.Len() == 0 && !s.AllowEmpty {
		return []string{"the list is empty"}
	}
	if list.Len() > 1 && !s.Multiselect && (len(s.Options) > 0 || !s.isArray()) {
		return []string{"want one choice (multiselect is off), got " + strconv.Itoa(list.Len())}
	}
	var wrong []string
	for i := range list.Len() {
		wrong = append(wrong, s.checkOne(list.Index(i).Interface())...)
	}
	return wrong
}

func (s Schema) checkOne(x any) []string {
	v, err := convert(s.scalarType(), x)
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	fail := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	switch v := v.(type) {
	case string:
		n := int64(utf8.RuneCountInString(v))
		if s.MinLength != nil && n < *s.MinLength {
			fail("%d characters are fewer than minLength %d", n, *s.MinLength)
		}
		if s.MaxLength != nil && n > *s.MaxLength {
			fail("%d characters are more than maxLength %d", n, *s.MaxLength)
		}
		if re, err := regexp.Compile(s.RegexMatch); err == nil && !re.MatchString(v) {
			fail("%q does not match %s", v, s.RegexMatch)
		}
	case int64:
		s.checkRange(float64(v), fail)
	case float64:
		s.checkRange(v, fail)
		_, fraction, _ := strings.Cut(Text(v), ".")
		if s.MinPrecision != nil && int64(len(fraction)) < *s.MinPrecision && !isTextNumber(x, *s.MinPrecision) {
			fail("%v has fewer than %d digits after the point", v, *s.MinPrecision)
		}
		if s.MaxPrecision != nil && int64(len(fraction)) > *s.MaxPrecision {
			fail("%v has more than %d digits after the point", v, *s.MaxPrecision)
		}
	}
	if len(s.Options) > 0 && !slices.ContainsFunc(s.Options, func(o any) bool { return Text(o) == Text(v) }) {
		fail("%s is none of the options %s", quoted(x), Text(s.Options))
	}
	return wrong
}

// isTextNumber says whether x is a number written as text, or a json.Number, with at
// least this many digits after the point: only these keep their closing zeros.
func isTextNumber(x any, digits int64) bool {
	_, fraction, _ := strings.Cut(Text(x), ".")
	return int64(len(fraction)) >= digits
}

func (s Schema) checkRange(v float64, fail func(string, ...any)) {
	if s.MinValue != nil && v < *s.MinValue {
		fail("%s is below minValue %s", Text(v), Text(*s.MinValue))
	}
	if s.MaxValue != nil && v > *s.MaxValue {
		fail("%s is above maxValue %s", Text(v), Text(*s.MaxValue))
	}
}

// ValidateValues checks values that a person gives for parameters, by name:
// whether the parameter exists, whether the value keeps the rules of its schema,
// and, where previous is not nil, whether an immutable one stays as it was.
// previous are the values of the deployment as it is; a parameter that neither
// names has its default. Missing values are found by Build, which knows the
// profile. An error is a Problems with paths such as values.port.
func (a *Application) ValidateValues(values, previous map[string]any) error {
	problems := a.checkValues(values)
	if previous == nil {
		return problems.Err()
	}
	for _, name := range slices.Sorted(maps.Keys(a.Parameters)) {
		setting, _, ok := a.Setting(name)
		before := Text(a.effective(name, previous))
		if ok && setting.Immutable && before != "" && Text(a.effective(name, values)) != before {
			problems = append(problems, valueProblem(name, fmt.Sprintf("this parameter may not change after the first install; it is %q", before)))
		}
	}
	return problems.Err()
}

func valueProblem(name, message string) Problem {
	return Problem{Path: "values." + name, Message: message}
}

// checkValues holds each given value against its schema.
func (a *Application) checkValues(values map[string]any) Problems {
	var problems Problems
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, ok := a.Parameters[name]; !ok {
			problems = append(problems, valueProblem(name, "the application has no such parameter; it has "+
				strings.Join(slices.Sorted(maps.Keys(a.Parameters)), ", ")))
			continue
		}
		x := values[name]
		if x == nil {
			continue // the default
		}
		if strings.ContainsRune(Text(x), 0) {
			problems = append(problems, valueProblem(name, "a zero byte cannot be passed to an application"))
			continue
		}
		// The default of an application is its author's business, also where it breaks
		// its schema: the import has warned of it.
		if given := a.Parameters[name].Value; given != nil && Text(given) == Text(x) && Text(x) != "" {
			continue
		}
		if _, schema, ok := a.Setting(name); ok {
			for _, message := range schema.check(x) {
				problems = append(problems, valueProblem(name, message))
			}
		} else if message := plainValue(x); message != "" {
			problems = append(problems, valueProblem(name, message))
		}
	}
	return problems
}

// effective returns the given value of a parameter, or its default.
func (a *Application) effective(name string, values map[string]any) any {
	if x, ok := values[name]; ok && x != nil {
		return x
	}
	return a.Parameters[name].Value
}

// plainValue says what is wrong with a value that no schema describes.
func plainValue(x any) string {
	switch v := reflect.ValueOf(x); v.Kind() {
	case reflect.Map, reflect.Struct, reflect.Pointer, reflect.Func, reflect.Chan:
		return "want a text, a number, true, false or a list of these"
	case reflect.Slice:
		for i := range v.Len() {
			if e := reflect.ValueOf(v.Index(i).Interface()); !e.IsValid() || e.Kind() == reflect.Slice || e.Kind() == reflect.Map {
				return "want a list of texts, numbers, true and false"
			}
		}
	default:
	}
	return ""
}

// Number returns x as a number; text says whether a text that is one counts.
func Number(x any, text bool) (float64, bool) {
	switch n := x.(type) {
	case float64:
		return n, true
	case int64:
		return float64(n), true
	case int:
		return float64(n), true
	case uint64:
		return float64(n), true
	case string:
		if f, err := strconv.ParseFloat(n, 64); text && err == nil {
			return f, true
		}
	}
	return 0, false
}
