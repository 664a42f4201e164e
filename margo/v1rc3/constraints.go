package v1rc3

import "strings"

// Constraints are a deviceConstraints object: what a device must have.
type Constraints struct {
	Capacity *Capacity `json:"capacityRequirements,omitempty" yaml:"capacityRequirements,omitempty"`
	// Rules are alternatives: one that holds is enough. None means no rule.
	Rules []Rule `json:"eligibilityRules,omitempty" yaml:"eligibilityRules,omitempty"`
}

// Capacity is what an application takes of a device.
type Capacity struct {
	CPU     *CPURequirement `json:"cpu,omitempty" yaml:"cpu,omitempty"`
	Memory  string          `json:"memory,omitempty" yaml:"memory,omitempty"`   // such as 512Mi
	Storage string          `json:"storage,omitempty" yaml:"storage,omitempty"` // such as 10Gi
}

// A CPURequirement must be met by one cpus entry of a device; entries never add up.
type CPURequirement struct {
	Cores         float64  `json:"cores" yaml:"cores"`
	Architectures []string `json:"architectures,omitempty" yaml:"architectures,omitempty"` // none: any
}

// A Rule holds where both its selectors hold. A nil selector holds.
type Rule struct {
	PropertySelector *Selector `json:"propertySelector,omitempty" yaml:"propertySelector,omitempty"`
	LabelSelector    *Selector `json:"labelSelector,omitempty" yaml:"labelSelector,omitempty"`
}

// A Selector holds where all of its expressions hold; as an itemSelector it is
// read as its operator says.
type Selector struct {
	MatchExpressions []Expression `json:"matchExpressions" yaml:"matchExpressions"`
}

// An Expression compares one property or label.
type Expression struct {
	// Key is a JSON pointer (RFC 6901) below the device's properties or below an
	// item, or the name of a label.
	Key          string    `json:"key" yaml:"key"`
	Operator     Operator  `json:"operator" yaml:"operator"`
	Values       []any     `json:"values,omitempty" yaml:"values,omitempty"` // strings, numbers, or one bool
	ItemSelector *Selector `json:"itemSelector,omitempty" yaml:"itemSelector,omitempty"`
}

// An Operator is how an Expression compares.
type Operator string

// The operators.
const (
	In           Operator = "In"           // the value is one of the list
	NotIn        Operator = "NotIn"        // the value is none of the list
	Exists       Operator = "Exists"       // the key has a value
	DoesNotExist Operator = "DoesNotExist" // the key has no value
	Gt           Operator = "Gt"           // the value is greater than the number
	Lt           Operator = "Lt"           // the value is less than the number
	ContainsAll  Operator = "ContainsAll"  // the list has all of the values
	ContainsAny  Operator = "ContainsAny"  // the list has at least one of the values
)

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
