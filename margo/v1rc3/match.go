package v1rc3

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Match says whether a device meets the constraints. Where it does not, why says
// in words what is missing. Capacity comes first; of the rules one must hold. Nil
// constraints are met by every device.
func (c *Constraints) Match(device Capabilities) (ok bool, why string) {
	if c == nil {
		return true, ""
	}
	if why = c.Capacity.missing(device.Properties); why != "" {
		return false, why
	}
	if len(c.Rules) == 0 {
		return true, ""
	}
	tree := propertyTree(device.Properties)
	reasons := make([]string, 0, len(c.Rules))
	for i, rule := range c.Rules {
		why := rule.PropertySelector.fails(func(key string) (any, bool) { return resolvePointer(tree, key) })
		if why == "" {
			why = rule.LabelSelector.fails(func(key string) (any, bool) {
				v, ok := device.Labels[key]
				return v, ok
			})
			if why != "" {
				why = "label " + why
			}
		}
		if why == "" {
			return true, ""
		}
		reasons = append(reasons, fmt.Sprintf("rule %d: %s", i+1, why))
	}
	return false, "no eligibility rule holds: " + strings.Join(reasons, "; ")
}

// missing says what of the capacity a device lacks, or "".
func (c *Capacity) missing(p DeviceProperties) string {
	if c == nil {
		return ""
	}
	if c.CPU != nil {
		if why := c.CPU.missing(p.CPUs); why != "" {
			return why
		}
	}
	if why := missingSize("memory", c.Memory, p.Memory); why != "" {
		return why
	}
	return missingSize("storage", c.Storage, p.Storage)
}

func (r *CPURequirement) missing(cpus []CPU) string {
	var most float64
	var found []string
	for _, cpu := range cpus {
		found = append(found, cpu.Architecture)
		if len(r.Architectures) > 0 && !slices.Contains(r.Architectures, cpu.Architecture) {
			continue
		}
		if cpu.Cores >= r.Cores {
			return ""
		}
		most = max(most, cpu.Cores)
	}
	switch {
	case len(cpus) == 0:
		return "it needs a CPU, the device reports none"
	case most == 0 && len(r.Architectures) > 0:
		return fmt.Sprintf("it needs architecture %s, the device has %s", strings.Join(r.Architectures, " or "), strings.Join(found, ", "))
	default:
		return fmt.Sprintf("it needs %s cores in one CPU, the device has %s", Text(r.Cores), Text(most))
	}
}

func missingSize(what, need, have string) string {
	if need == "" {
		return ""
	}
	n, ok := ParseSize(need)
	if !ok {
		return fmt.Sprintf("its %s requirement %q is not a size", what, need)
	}
	h, ok := ParseSize(have)
	switch {
	case !ok && have == "":
		return fmt.Sprintf("it needs %s of %s, the device reports none", need, what)
	case !ok:
		return fmt.Sprintf("it needs %s of %s, the device reports %q, which is not a size", need, what, have)
	case h < n:
		return fmt.Sprintf("it needs %s of %s, the device has %s", need, what, have)
	}
	return ""
}

// A lookup returns what a key names.
type lookup func(key string) (any, bool)

// fails describes the first expression that does not hold, or returns "".
func (s *Selector) fails(get lookup) string {
	if s == nil {
		return ""
	}
	for _, e := range s.MatchExpressions {
		got, exists := get(e.Key)
		if e.holds(got, exists) {
			continue
		}
		has := "does not have it"
		if exists {
			b, _ := json.Marshal(got)
			has = "has " + string(b)
		}
		return fmt.Sprintf("%s, the device %s", e, has)
	}
	return ""
}

// String returns the expression in one line.
func (e Expression) String() string {
	s := e.Key + " " + string(e.Operator)
	if len(e.Values) > 0 {
		s += " " + Text(e.Values)
	}
	if e.ItemSelector != nil {
		parts := make([]string, len(e.ItemSelector.MatchExpressions))
		for i, item := range e.ItemSelector.MatchExpressions {
			parts[i] = item.String()
		}
		s += " (" + strings.Join(parts, "; ") + ")"
	}
	return s
}

// holds evaluates an expression on the value of its key. A value of a type that
// the operator does not work on makes it false.
func (e Expression) holds(got any, exists bool) bool {
	switch e.Operator {
	case Exists:
		return exists && listable(got, true)
	case DoesNotExist:
		return !exists
	case In:
		return exists && listable(got, false) && e.contains(got)
	case NotIn:
		return exists && listable(got, false) && !e.contains(got)
	case Gt, Lt:
		return exists && e.compare(got)
	case ContainsAll, ContainsAny:
		return exists && e.containsItem(got)
	}
	return false
}

// listable says whether a value is a scalar or a list of scalars, or, where
// objects is set, a list of objects.
func listable(got any, objects bool) bool {
	list, ok := asList(got)
	if !ok {
		_, isMap := got.(map[string]any)
		return got != nil && !isMap
	}
	return !slices.ContainsFunc(list, func(x any) bool {
		switch x.(type) {
		case map[string]any:
			return !objects
		case []any:
			return true
		}
		return false
	})
}

func (e Expression) contains(got any) bool {
	list, ok := asList(got)
	if !ok {
		list = []any{got}
	}
	return slices.ContainsFunc(list, func(x any) bool {
		return slices.ContainsFunc(e.Values, func(v any) bool { return equal(x, v) })
	})
}

func (e Expression) compare(got any) bool {
	if len(e.Values) != 1 {
		return false
	}
	bound, ok := asNumber(e.Values[0], true)
	n, isNumber := asNumber(got, false)
	if !ok || !isNumber {
		return false
	}
	if e.Operator == Gt {
		return n > bound
	}
	return n < bound
}

// containsItem says whether one element of a list of objects satisfies all
// expressions of the item selector (ContainsAll), or any of them (ContainsAny).
func (e Expression) containsItem(got any) bool {
	list, ok := asList(got)
	if !ok || e.ItemSelector == nil {
		return false
	}
	for _, item := range list {
		object, ok := item.(map[string]any)
		if !ok {
			return false
		}
		matched := 0
		for _, expression := range e.ItemSelector.MatchExpressions {
			if v, exists := resolvePointer(object, expression.Key); expression.holds(v, exists) {
				matched++
			}
		}
		if e.Operator == ContainsAny && matched > 0 || e.Operator == ContainsAll && matched == len(e.ItemSelector.MatchExpressions) {
			return true
		}
	}
	return false
}

// equal compares without any conversion between texts, numbers and bools.
func equal(a, b any) bool {
	if x, ok := asNumber(a, false); ok {
		y, ok := asNumber(b, false)
		return ok && x == y
	}
	return a == b
}

// asNumber returns x as a number; text says whether a text that is one counts.
func asNumber(x any, text bool) (float64, bool) {
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

// asList returns the lists that labels and properties are made of as []any.
func asList(x any) ([]any, bool) {
	switch list := x.(type) {
	case []any:
		return list, true
	case []string:
		all := make([]any, len(list))
		for i, s := range list {
			all[i] = s
		}
		return all, true
	case []float64:
		all := make([]any, len(list))
		for i, f := range list {
			all[i] = f
		}
		return all, true
	}
	return nil, false
}

// propertyTree returns the properties as JSON sees them, for pointers.
func propertyTree(p DeviceProperties) map[string]any {
	var tree map[string]any
	b, err := json.Marshal(p)
	if err != nil || json.Unmarshal(b, &tree) != nil {
		return nil
	}
	return tree
}

// resolvePointer follows an RFC 6901 pointer.
func resolvePointer(root any, pointer string) (any, bool) {
	if !strings.HasPrefix(pointer, "/") {
		return nil, false
	}
	at := root
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch node := at.(type) {
		case map[string]any:
			next, ok := node[token]
			if !ok {
				return nil, false
			}
			at = next
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(node) || strconv.Itoa(i) != token {
				return nil, false
			}
			at = node[i]
		default:
			return nil, false
		}
	}
	return at, true
}
