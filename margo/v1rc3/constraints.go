package v1rc3

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
	In           Operator = "In"
	NotIn        Operator = "NotIn"
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
	Gt           Operator = "Gt"
	Lt           Operator = "Lt"
	ContainsAll  Operator = "ContainsAll"
	ContainsAny  Operator = "ContainsAny"
)
