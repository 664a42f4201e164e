// Package eligible says whether a device meets the constraints of a Margo application.
package eligible

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/colonyfleet/colony/margo/v1rc3"
)

// Match says whether a device meets the constraints. Where it does not, why says
// in words what is missing. Capacity comes first; of the rules one must hold. Nil
// constraints are met by every device.
func Match(c *v1rc3.Constraints, device v1rc3.Capabilities) (ok bool, why string) {
	if c == nil {
		return true, ""
	}
	if why = missing(c.Capacity, device.Properties); why != "" {
		return false, why
	}
	if len(c.Rules) == 0 {
		return true, ""
	}
	tree := propertyTree(device.Properties)
	reasons := make([]string, 0, len(c.Rules))
	for i, rule := range c.Rules {
		why := fails(rule.PropertySelector, func(key string) (any, bool) { return resolvePointer(tree, key) })
		if why == "" {
			why = fails(rule.LabelSelector, func(key string) (any, bool) {
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
func missing(c *v1rc3.Capacity, p v1rc3.DeviceProperties) string {
	if c == nil {
		return ""
	}
	if c.CPU != nil {
		if why := missingCPU(c.CPU, p.CPUs); why != "" {
			return why
		}
	}
	if why := missingSize("memory", c.Memory, p.Memory); why != "" {
		return why
	}
	return missingSize("storage", c.Storage, p.Storage)
}

func missingCPU(r *v1rc3.CPURequirement, cpus []v1rc3.CPU) string {
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
		return fmt.Sprintf("it needs %s cores in one CPU, the device has %s", v1rc3.Text(r.Cores), v1rc3.Text(most))
	}
}

func missingSize(what, need, have string) string {
	if need == "" {
		return ""
	}
	n, ok := v1rc3.ParseSize(need)
	if !ok {
		return fmt.Sprintf("its %s requirement %q is not a size", what, need)
	}
	h, ok := v1rc3.ParseSize(have)
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
func fails(s *v1rc3.Selector, get lookup) string {
	if s == nil {
		return ""
	}
	for _, e := range s.MatchExpressions {
		got, exists := get(e.Key)
		if holds(e, got, exists) {
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

// holds evaluates an expression on the value of its key. A value of a type that
// the operator does not work on makes it false.
func holds(e v1rc3.Expression, got any, exists bool) bool {
	switch e.Operator {
	case v1rc3.Exists:
		return exists && listable(got, true)
	case v1rc3.DoesNotExist:
		return !exists
	case v1rc3.In:
		return exists && listable(got, false) && contains(e, got)
	case v1rc3.NotIn:
		return exists && listable(got, false) && !contains(e, got)
	case v1rc3.Gt, v1rc3.Lt:
		return exists && compare(e, got)
	case v1rc3.ContainsAll, v1rc3.ContainsAny:
		return exists && containsItem(e, got)
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

func contains(e v1rc3.Expression, got any) bool {
	list, ok := asList(got)
	if !ok {
		list = []any{got}
	}
	return slices.ContainsFunc(list, func(x any) bool {
		return slices.ContainsFunc(e.Values, func(v any) bool { return equal(x, v) })
	})
}

func compare(e v1rc3.Expression, got any) bool {
	if len(e.Values) != 1 {
		return false
	}
	bound, ok := v1rc3.Number(e.Values[0], true)
	n, isNumber := v1rc3.Number(got, false)
	if !ok || !isNumber {
		return false
	}
	if e.Operator == v1rc3.Gt {
		return n > bound
	}
	return n < bound
}

// containsItem says whether one element of a list of objects satisfies all
// expressions of the item selector (ContainsAll), or any of them (ContainsAny).
func containsItem(e v1rc3.Expression, got any) bool {
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
			if v, exists := resolvePointer(object, expression.Key); holds(expression, v, exists) {
				matched++
			}
		}
		if e.Operator == v1rc3.ContainsAny && matched > 0 || e.Operator == v1rc3.ContainsAll && matched == len(e.ItemSelector.MatchExpressions) {
			return true
		}
	}
	return false
}

// equal compares without any conversion between texts, numbers and bools.
func equal(a, b any) bool {
	if x, ok := v1rc3.Number(a, false); ok {
		y, ok := v1rc3.Number(b, false)
		return ok && x == y
	}
	return a == b
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
func propertyTree(p v1rc3.DeviceProperties) map[string]any {
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
