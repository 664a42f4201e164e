// Package s3test starts versitygw, a real object storage with the protocol of Amazon S3, for the
// tests of what is kept in one.
package s3test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testpart"
	"github.com/colonyfleet/colony/internal/testproc"
)

const program = "/usr/local/lib/colony-test-peers/bin/versitygw"

// The keys of its only user.
const (
	accessKey = "colony"
	secretKey = "a secret of the test"
)

// A Server is an object storage over plain files.
type Server struct {
	*testproc.Process
	// URL is where it listens.
	URL string
	// CredentialFile has the keys of a user that may do everything.
	CredentialFile string
	t              testing.TB
	addr           string
	root, attrs    string
}

// Start starts a server without a bucket, and waits until it listens. It ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run scripts/setup --with-test-peers as root", err)
	}
	dir := t.TempDir()
	addr := freeport.Addr(t)
	s := &Server{
		Process: testproc.New(t, "versitygw", filepath.Join(dir, "log")), URL: "http://" + addr, t: t, addr: addr,
		root: filepath.Join(dir, "root"), attrs: filepath.Join(dir, "attributes"),
	}
	for _, d := range []string{s.root, s.attrs} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.CredentialFile = Credentials(t, accessKey, secretKey)
	s.SetEnv("ROOT_ACCESS_KEY="+accessKey, "ROOT_SECRET_KEY="+secretKey)
	s.Again()
	t.Cleanup(s.Kill)
	return s
}

// Again starts the server after it was killed, and waits until it listens.
func (s *Server) Again() {
	s.t.Helper()
	s.Process.Start(program, "--port", s.addr, "--quiet", "posix", "--sidecar", s.attrs, s.root)
	testpart.Eventually(s.t, "versitygw listens", func() bool {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			err = c.Close()
		}
		return err == nil
	})
}

// Bucket makes a bucket.
func (s *Server) Bucket(name string) {
	s.t.Helper()
	if err := os.Mkdir(filepath.Join(s.root, name), 0o700); err != nil {
		s.t.Fatal(err)
	}
}

// Credentials writes a file with keys as programs of Amazon's read it.
func Credentials(t testing.TB, access, secret string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "credentials")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", access, secret)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
