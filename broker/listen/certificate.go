package listen

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// lookInterval is how long a certificate is used before its files are looked at again.
const lookInterval = time.Second

// Certificate returns a server's configuration for TLS 1.2 and 1.3 with the chain and the
// key in two PEM files. The files are looked at when a client connects, at most once a
// second, and read again when they have changed; existing connections are not touched.
// Files that do not fit together, as in the middle of a change, leave the former
// certificate in use; failed is called once for each change.
func Certificate(chain, key string, failed func(error)) (*tls.Config, error) {
	c := &certificate{files: [2]string{chain, key}, failed: failed}
	var err error
	if c.stamps, err = c.look(); err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	if c.current, err = c.read(); err != nil {
		return nil, err
	}
	c.looked = time.Now()
	return &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12}, nil
}

// A certificate is read again when its files have changed. Its methods may be called
// concurrently.
type certificate struct {
	files  [2]string
	failed func(error)

	mu      sync.Mutex // protects what follows
	current *tls.Certificate
	stamps  [2]stamp // of what current was read from, or should have been
	looked  time.Time
}

// A stamp changes when a file does.
type stamp struct {
	modified time.Time
	size     int64
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookInterval {
		return c.current, nil
	}
	c.looked = time.Now()
	now, err := c.look()
	if err == nil && now == c.stamps {
		return c.current, nil
	}
	if err == nil {
		c.stamps = now
		var fresh *tls.Certificate
		if fresh, err = c.read(); err == nil {
			c.current = fresh
		}
	}
	if err != nil {
		c.failed(fmt.Errorf("the certificate stays as it was: %w", err))
	}
	return c.current, nil
}

func (c *certificate) look() (out [2]stamp, err error) {
	for i, name := range c.files {
		info, err := os.Stat(name)
		if err != nil {
			return out, err
		}
		out[i] = stamp{info.ModTime(), info.Size()}
	}
	return out, nil
}

func (c *certificate) read() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.files[0], c.files[1])
	if err != nil {
		return nil, fmt.Errorf("read certificate %s with key %s: %w", c.files[0], c.files[1], err)
	}
	return &pair, nil
}
