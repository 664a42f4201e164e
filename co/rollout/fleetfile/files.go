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
	File       string                     `json:"file"`
	Exceptions map[protocol.SiteID]string `json:"exceptions,omitempty"`
	// App is the document of its application.
	App string `json:"app"`
}

// Encode returns the files as they are recorded, and their digest.
func (f *Files) Encode() (source []byte, digest string, err error) {
	if source, err = json.Marshal(f); err != nil {
		return nil, "", fmt.Errorf("encode a fleet deployment: %w", err)
	}
	sum := sha256.Sum256(source)
	return source, hex.EncodeToString(sum[:]), nil
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
