package command

import (
	"crypto/ed25519"
	"path"
	"strings"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// MaxPaths bounds the number of FilesRequest.Paths.
	MaxPaths = 64
	// MaxPath bounds each of them, in bytes.
	MaxPath = 1024
)

// A DiagnosticsRequest are the arguments of Diagnostics: an archive of what the node knows of itself comes up, as the standard output of a session.
type DiagnosticsRequest struct {
	// Key is the public key (Ed25519) of this command alone, by which the CO signs what goes down.
	Key []byte `cbor:"1,keyasint" json:"key"`
}

// Check returns what is wrong with the arguments.
func (r *DiagnosticsRequest) Check() error { return checkKey(r.Key) }

// A FilesRequest are the arguments of Files: an archive of the files comes up, as the standard output of a session.
type FilesRequest struct {
	// Key is as in a DiagnosticsRequest.
	Key []byte `cbor:"1,keyasint" json:"key"`
	// Paths are absolute paths of files at the node, or patterns of path.Match. The configuration of the node says which may be read.
	Paths []string `cbor:"2,keyasint" json:"paths"`
}

// Check returns what is wrong with the arguments.
func (r *FilesRequest) Check() error {
	if len(r.Paths) == 0 || len(r.Paths) > MaxPaths {
		return protocol.Errorf(protocol.Invalid, "%d paths: want 1 to %d", len(r.Paths), MaxPaths)
	}
	for _, p := range r.Paths {
		if err := CheckPath(p); err != nil {
			return err
		}
	}
	return checkKey(r.Key)
}

// CheckPath returns what is wrong with a path of FilesRequest.
func CheckPath(p string) error {
	if _, err := path.Match(p, ""); err != nil {
		return protocol.Errorf(protocol.Invalid, "path %.80q: a pattern that has no end", p)
	}
	if !path.IsAbs(p) || path.Clean(p) != p || len(p) > MaxPath || strings.ContainsRune(p, 0) {
		return protocol.Errorf(protocol.Invalid, "path %.80q: want an absolute path of at most %d bytes without . and .., such as /var/log/syslog or /var/log/*.log", p, MaxPath)
	}
	return nil
}

func checkKey(key []byte) error {
	if len(key) != ed25519.PublicKeySize {
		return protocol.Errorf(protocol.Invalid, "a key of %d bytes for what goes down: want %d", len(key), ed25519.PublicKeySize)
	}
	return nil
}
