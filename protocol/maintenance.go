package protocol

// Maintenance says when a site may update and remove what its nodes run. Since 0.3.0.
type Maintenance struct {
	// TimeZone is that of the windows, by its name in the IANA Time Zone Database.
	TimeZone string   `cbor:"1,keyasint"`
	Windows  []Window `cbor:"2,keyasint"` // there is at least one
}

// A Window is a time of the week. Since 0.3.0.
type Window struct {
	// Days are those on which it begins, as bits: 1 is Sunday, 2 Monday, up to 64. Absent: each day.
	Days uint8 `cbor:"1,keyasint,omitempty"`
	// Start is when it begins, in minutes after midnight by the clock of the time zone, below 1440. Absent: at midnight.
	Start   uint16 `cbor:"2,keyasint,omitempty"`
	Minutes uint16 `cbor:"3,keyasint"` // how long it lasts, up to a week
}
