package fleetfile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/colonyfleet/colony/protocol"
)

// Files are those of one fleet deployment: the text of each.
type Files struct {
	File       string                     `json:"file"`                 // of the fleet deployment
	Exceptions map[protocol.SiteID]string `json:"exceptions,omitempty"` // by site; absent: none
	// App is the document of its application.
	App string `json:"app"`
}

// Encode returns the files as they are recorded.
func (f *Files) Encode() ([]byte, error) {
	source, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode a fleet deployment: %w", err)
	}
	return source, nil
}

// Digests identify what files ask for, however they are written.
type Digests struct {
	// Content is of what runs at the sites.
	Content string
	// Asks is of that, and of the targets. How a revision spreads is in neither.
	Asks string
}

// Digests returns those of files: parsed and exceptions are what they say, or nil where they cannot be read.
func (f *Files) Digests(parsed *File, exceptions map[protocol.SiteID]*Exception) (d Digests, err error) {
	if parsed == nil {
		d.Content, err = digest(f)
		d.Asks = d.Content
		return d, err
	}
	content := struct {
		File       File
		Exceptions map[protocol.SiteID]*Exception
		App        string
	}{*parsed, exceptions, f.App}
	content.File.Targets, content.File.Strategy = Targets{}, Strategy{}
	if d.Content, err = digest(content); err != nil {
		return d, err
	}
	d.Asks, err = digest([]any{d.Content, parsed.Targets})
	return d, err
}

func digest(of any) (string, error) {
	raw, err := json.Marshal(of)
	if err != nil {
		return "", fmt.Errorf("encode a fleet deployment: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// Decode reads the files of a revision as the record has them.
func Decode(raw []byte) (f Files, err error) {
	if err := json.Unmarshal(raw, &f); err != nil {
		return f, protocol.Errorf(protocol.Internal, "stored revision of a fleet deployment: %w", err)
	}
	return f, nil
}

// Paths returns where the files of a fleet deployment are, with what each says.
func (f *Files) Paths(name protocol.DeploymentName) map[string][]byte {
	out := map[string][]byte{Path(name): []byte(f.File)}
	for site, text := range f.Exceptions {
		out[ExceptionPath(name, site)] = []byte(text)
	}
	return out
}
