package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// SiteID names a site: a DNS label (RFC 1123, 1 to 63 of a-z, 0-9, -).
type SiteID string

// NodeID names a node within its site: a DNS label.
type NodeID string

// DeploymentName names a deployment within its site: a DNS label. It is also
// the name of its folder in the deployments repo.
type DeploymentName string

// ParseSiteID checks that s can be a site id.
func ParseSiteID(s string) (SiteID, error) {
	return SiteID(s), checkLabel("site", s)
}

// ParseNodeID checks that s can be a node id.
func ParseNodeID(s string) (NodeID, error) {
	return NodeID(s), checkLabel("node", s)
}

// ParseDeploymentName checks that s can be the name of a deployment.
func ParseDeploymentName(s string) (DeploymentName, error) {
	return DeploymentName(s), checkLabel("deployment", s)
}

func checkLabel(what, s string) error {
	if !isLabel(s) {
		return Errorf(Invalid, "%s name %q: want 1 to 63 of a-z, 0-9 and -, not beginning or ending with -", what, s)
	}
	return nil
}

// isLabel is asked for each event and each topic, so it is a loop and no pattern.
func isLabel(s string) bool {
	if len(s) < 1 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// A Digest names bytes by their SHA-256, in the form "sha256:<64 hex digits>".
type Digest string

// DigestOf returns the digest of b.
func DigestOf(b []byte) Digest {
	return DigestOfSum(sha256.Sum256(b))
}

// DigestOfSum returns the digest of what has a SHA-256.
func DigestOfSum(sum [sha256.Size]byte) Digest {
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// Sum returns the SHA-256 of a digest.
func (d Digest) Sum() ([]byte, error) {
	if _, err := ParseDigest(string(d)); err != nil {
		return nil, err
	}
	return hex.DecodeString(strings.TrimPrefix(string(d), "sha256:"))
}

// ParseDigest checks the form of s. Only sha256 is accepted.
func ParseDigest(s string) (Digest, error) {
	h, ok := strings.CutPrefix(s, "sha256:")
	if b, err := hex.DecodeString(h); !ok || err != nil || len(b) != sha256.Size || h != strings.ToLower(h) {
		return "", Errorf(Invalid, "digest %q: want sha256: and 64 lower-case hex digits", s)
	}
	return Digest(s), nil
}

// Verify returns an error unless b has the digest d.
func (d Digest) Verify(b []byte) error {
	if got := DigestOf(b); got != d {
		return fmt.Errorf("digest mismatch: want %s, got %s", d, got)
	}
	return nil
}

// Short returns the first 12 hex digits, for people.
func (d Digest) Short() string {
	h := strings.TrimPrefix(string(d), "sha256:")
	return h[:min(12, len(h))]
}
