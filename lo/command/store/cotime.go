package store

import (
	"encoding/json"
	"errors"

	"github.com/colonyfleet/colony/internal/disk"
	"github.com/colonyfleet/colony/internal/statefile"
	"github.com/colonyfleet/colony/protocol/command/cotime"
)

// A TimeFile keeps what the CO has answered last to what time it is there.
type TimeFile struct{ file statefile.File }

// OpenTime returns the TimeFile of a path, and what it holds; the zero Answer: nothing. A file that cannot be read counts as none, as the CO is asked again.
func OpenTime(d disk.FS, path string) (TimeFile, cotime.Answer, *statefile.Damage) {
	f := TimeFile{statefile.File{Disk: d, Path: path, Identity: statefile.Identity{Role: "lo/cotime"}}}
	var a cotime.Answer
	_, err := f.file.Load(func(content []byte) error { return json.Unmarshal(content, &a) })
	var damage *statefile.Damage
	if errors.As(err, &damage) {
		return f, cotime.Answer{}, damage
	}
	return f, a, nil
}

// Save writes an answer down.
func (f TimeFile) Save(a cotime.Answer) error {
	content, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return f.file.Save(content)
}
