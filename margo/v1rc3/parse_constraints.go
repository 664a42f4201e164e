package v1rc3

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	memorySize  = regexp.MustCompile(`^[0-9]+(Mi|Gi|Ki)$`)
	storageSize = regexp.MustCompile(`^[0-9]+(Mi|Gi|Ki|Ti|Pi|Ei)$`)
)

func readConstraints(v value) *Constraints {
	if v.Absent() {
		return nil
	}
	o := v.Object("capacityRequirements", "eligibilityRules")
	c := new(Constraints)
	if capacity := o.Mapping("capacityRequirements"); !capacity.Absent() {
		c.Capacity = readCapacity(capacity)
	}
	for _, item := range o.Get("eligibilityRules").List() {
		f := item.Object("propertySelector", "labelSelector")
		if len(f.Keys) == 0 && f.Exists() {
			f.Note("want a propertySelector, a labelSelector or both")
		}
		c.Rules = append(c.Rules, Rule{
			PropertySelector: readSelector(f.Mapping("propertySelector"), properties),
			LabelSelector:    readSelector(f.Mapping("labelSelector"), labels),
		})
	}
	return c
}

func readCapacity(v value) *Capacity {
	o := v.Object("cpu", "memory", "storage")
	c := &Capacity{
		Memory:  o.Get("memory").Match(memorySize, "a size such as 512Mi (Ki, Mi, Gi)"),
		Storage: o.Get("storage").Match(storageSize, "a size such as 10Gi (Ki, Mi, Gi, Ti, Pi, Ei)"),
	}
	for _, size := range [][2]string{{"memory", c.Memory}, {"storage", c.Storage}} {
		if f := o.Get(size[0]); f.Exists() {
			if _, ok := ParseSize(size[1]); !ok {
				f.Report("%q is too large", size[1])
			}
		}
	}
	if cpu := o.Mapping("cpu"); !cpu.Absent() {
		f := cpu.Object("cores", "architectures")
		c.CPU = new(CPURequirement)
		if cores := f.Need("cores").Number(); cores != nil {
			if c.CPU.Cores = *cores; *cores < 0 {
				f.Get("cores").Report("want a number of 0 or more")
			}
		}
		for _, item := range f.Get("architectures").List() {
			c.CPU.Architectures = append(c.CPU.Architectures, item.OneOf(rc3.capacityArchitectures...))
		}
	}
	return c
}

// A scope is what the keys of a selector name.
type scope int

const (
	properties scope = iota // JSON pointers below the device's properties
	labels                  // names of labels
	items                   // JSON pointers below an element of a list
)

func readSelector(v value, where scope) *Selector {
	if v.Absent() {
		return nil
	}
	s := new(Selector)
	for _, item := range v.Object("matchExpressions").Need("matchExpressions").Some() {
		s.MatchExpressions = append(s.MatchExpressions, readExpression(item, where))
	}
	return s
}

func readExpression(v value, where scope) Expression {
	o := v.Object("key", "operator", "values", "itemSelector")
	key := o.Need("key")
	e := Expression{Key: key.Name(), Operator: Operator(o.Need("operator").OneOf(rc3.operators...))}
	if where != labels && key.Exists() && !validPointer(e.Key) {
		key.Report("%q: want a JSON pointer such as /peripherals", e.Key)
	}
	selector, list := o.Get("itemSelector"), o.Get("values")
	if !o.Get("operator").Exists() {
		return e
	}
	switch e.Operator {
	case ContainsAll, ContainsAny:
		if where != properties {
			o.Get("operator").Report("%s works on lists of the device's properties only", e.Operator)
		}
		e.ItemSelector = readSelector(o.Need("itemSelector"), items)
		unwanted(list, e.Operator)
		return e
	case Exists, DoesNotExist:
		unwanted(list, e.Operator)
	case In, NotIn:
		e.Values = readValues(o.Need("values"))
	case Gt, Lt:
		e.Values = readValues(o.Need("values"))
		if list = o.Get("values"); list.Exists() && (len(e.Values) != 1 || !numeric(e.Values[0])) {
			list.Report("%s takes exactly one number", e.Operator)
		}
	}
	unwanted(selector, e.Operator)
	return e
}

func unwanted(v value, op Operator) {
	if !v.Absent() {
		v.Note("%s does not take this", op)
	}
}

func validPointer(s string) bool {
	if !strings.HasPrefix(s, "/") {
		return false
	}
	for i := range len(s) {
		if s[i] == '~' && (i+1 == len(s) || s[i+1] != '0' && s[i+1] != '1') {
			return false
		}
	}
	return true
}

// numeric says whether a value is a number, or a text that is one.
func numeric(x any) bool {
	_, ok := Number(x, true)
	return ok
}

// readValues reads strings or numbers, all of one type, or exactly one bool.
func readValues(v value) []any {
	var all []any
	var kinds []string
	for _, item := range v.Some() {
		if !item.Exists() {
			continue
		}
		x := item.Scalar()
		switch x.(type) {
		case string:
			kinds = append(kinds, "text")
		case int64, float64:
			kinds = append(kinds, "number")
		case bool:
			kinds = append(kinds, "bool")
		default:
			item.Report("want a text, a number, true or false, got %s", item.Kind())
			continue
		}
		all = append(all, x)
	}
	slices.Sort(kinds)
	if distinct := slices.Compact(slices.Clone(kinds)); len(distinct) > 1 {
		v.Note("the values are of several types (%s): want one", strings.Join(distinct, ", "))
	} else if len(kinds) > 1 && kinds[0] == "bool" {
		v.Note("want exactly one true or false")
	}
	return all
}

// hasLabelRules says whether there are rules and each looks at labels.
func (c *Constraints) hasLabelRules() bool {
	if c == nil || len(c.Rules) == 0 {
		return false
	}
	return !slices.ContainsFunc(c.Rules, func(r Rule) bool { return r.LabelSelector == nil })
}

var size = regexp.MustCompile(`^\s*(\d+)\s*([KMGTPE]i)\s*$`)

// ParseSize returns the bytes of a size such as 512Mi. Devices write a space
// before the unit, which is tolerated. ok is false for anything else and for what
// does not fit.
func ParseSize(s string) (bytes uint64, ok bool) {
	m := size.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	shift := 10 * (1 + strings.IndexByte("KMGTPE", m[2][0]))
	if err != nil || n > ^uint64(0)>>shift {
		return 0, false
	}
	return n << shift, true
}
