package objects

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/colonyfleet/colony/protocol"
)

// tries is how often a call is sent, the first time included.
const tries = 4

// unknownUser is what versitygw says where others say minio.InvalidAccessKeyID.
const unknownUser = "XAdminUserNotFound"

// idle bounds each wait for bytes of the storage, and answer the wait for the head of an answer.
const (
	idle   = time.Minute
	answer = 30 * time.Second
)

// A Location says where a bucket is. The zero value: nowhere.
type Location struct {
	// Endpoint is the URL of the storage, such as https://s3.example.com:9000, without a path.
	Endpoint string `yaml:"endpoint,omitempty"`
	// Bucket is its name. It must be there.
	Bucket string `yaml:"bucket,omitempty"`
	// Prefix is before each key, so that a bucket may hold other things. Empty: none.
	Prefix string `yaml:"prefix,omitempty"`
	// Region is that of the bucket, if the storage has regions. Default us-east-1.
	Region string `yaml:"region,omitempty"`
	// CredentialFile has the keys, in the form of ~/.aws/credentials: aws_access_key_id and
	// aws_secret_access_key in the section [default].
	CredentialFile string `yaml:"credentialFile,omitempty"`
	// CA is a file with the certificates that the storage's is checked against, in PEM. Empty: those
	// of the system.
	CA string `yaml:"ca,omitempty"`
}

// Given reports whether there is one.
func (l Location) Given() bool { return l != Location{} }

// Validate reports all that is wrong with a location whose keys begin with key. One that is not
// given is right.
func (l Location) Validate(key string) error {
	if !l.Given() {
		return nil
	}
	var errs []error
	u, err := url.Parse(l.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" || u.User != nil {
		errs = append(errs, fmt.Errorf("%s.endpoint: want a URL such as https://s3.example.com:9000, without a path or a user", key))
	}
	if l.Bucket == "" {
		errs = append(errs, fmt.Errorf("%s.bucket: name the bucket, which must be there", key))
	}
	if l.CredentialFile == "" {
		errs = append(errs, fmt.Errorf("%s.credentialFile: name a file with aws_access_key_id and aws_secret_access_key in the section [default]", key))
	}
	return errors.Join(errs...)
}

// client returns a client and its connections. It makes no call.
func (l Location) client() (*minio.Client, *http.Transport, error) {
	u, err := url.Parse(l.Endpoint)
	if err != nil {
		return nil, nil, protocol.Errorf(protocol.Invalid, "object storage: %w", err)
	}
	keys := credentials.NewFileAWSCredentials(l.CredentialFile, "default")
	if v, err := keys.GetWithContext(nil); err != nil || v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return nil, nil, protocol.Errorf(protocol.Invalid, "object storage: %s has no aws_access_key_id and aws_secret_access_key in a section [default]: write them there",
			l.CredentialFile)
	}
	roots, err := l.roots()
	if err != nil {
		return nil, nil, err
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	connections := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &patient{c}, nil
		},
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: answer, IdleConnTimeout: idle / 2, MaxIdleConnsPerHost: 16,
		DisableCompression: true, // a blob comes as it is
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: keys, Secure: u.Scheme == "https", Region: l.region(), MaxRetries: tries, BucketLookup: minio.BucketLookupAuto, Transport: connections,
	})
	if err != nil {
		return nil, nil, protocol.Errorf(protocol.Invalid, "object storage: %w", err)
	}
	return client, connections, nil
}

func (l Location) region() string {
	if l.Region == "" {
		return "us-east-1"
	}
	return l.Region
}

func (l Location) roots() (*x509.CertPool, error) {
	if l.CA == "" {
		return nil, nil //nolint:nilnil // those of the system
	}
	pem, err := os.ReadFile(l.CA)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "object storage: read the certificates of ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, protocol.Errorf(protocol.Invalid, "object storage: %s has no certificate in PEM", l.CA)
	}
	return roots, nil
}

// patient is a connection whose other end must take or send something within idle.
type patient struct{ net.Conn }

// Read implements net.Conn.
func (c *patient) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(idle)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *patient) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(idle)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// explain says what a call met, and what to do about it.
func (l Location) explain(err error) error {
	if err == nil {
		return nil
	}
	code := minio.ToErrorResponse(err).Code
	switch {
	case code == minio.NoSuchKey:
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case code == minio.NoSuchBucket:
		return l.trouble(err, "there is no bucket %q: create it, or name another one", l.Bucket)
	case code == minio.InvalidAccessKeyID || code == minio.SignatureDoesNotMatch || code == unknownUser:
		return l.trouble(err, "the keys of %s are refused: write those of a user that the storage knows, and compare the clocks", l.CredentialFile)
	case code == minio.AccessDenied || status(err) == http.StatusForbidden:
		return l.trouble(err, "the keys of %s may not do this: let their user list the bucket %q, and read, write and delete in it", l.CredentialFile, l.Bucket)
	case status(err) == 0 && errors.Is(err, context.Canceled):
		return err
	case status(err) == 0:
		return l.trouble(err, "it does not answer: check the address, the network, and whether it runs")
	}
	return l.trouble(err, "it answers %s", code)
}

func (l Location) trouble(err error, format string, args ...any) error {
	return protocol.Errorf(protocol.Unavailable, "object storage at %s: %s: %w", l.Endpoint, fmt.Sprintf(format, args...), err)
}
