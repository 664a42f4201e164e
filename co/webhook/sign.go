package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
)

// secretPrefix begins a secret (Standard Webhooks 1.0, "Symmetric").
const secretPrefix = "whsec_"

const (
	minSecret = 24
	maxSecret = 64
)

// secrets reads those of a file, one on a line. The errors name the file and not what is in it.
func secrets(path string) (keys [][]byte, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("secret of the webhook: %w", err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(line), secretPrefix))
		if err != nil || len(key) < minSecret || len(key) > maxSecret {
			return nil, fmt.Errorf("secret of the webhook: %s:%d: want %s and %d to %d bytes in base64, as of: echo %s$(openssl rand -base64 32)", path, i+1, secretPrefix, minSecret, maxSecret, secretPrefix)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// signatures signs a post with each key (Standard Webhooks 1.0, "Signature scheme").
func signatures(keys [][]byte, id, timestamp string, body []byte) string {
	var all []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
		all = append(all, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(all, " ")
}
