package co

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/co/data/remotewrite"
)

// RemoteWriteOptions say where numbers of the sites' machine data are sent by
// Prometheus remote write. Without URL they are not sent.
type RemoteWriteOptions struct {
	// URL is where samples are posted, such as http://prometheus:9090/api/v1/write.
	URL string `yaml:"url,omitempty"`
	// Headers go with each request.
	Headers map[string]string `yaml:"headers,omitempty"`
	// CredentialFile holds the value of the header Authorization, such as "Bearer x".
	CredentialFile string `yaml:"credentialFile,omitempty"`
	// Timeout bounds one request. Default 30 s.
	Timeout time.Duration `yaml:"timeout,omitempty"`
}

func (o RemoteWriteOptions) validate() error {
	var errs []error
	if u, err := url.Parse(o.URL); o.URL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, fmt.Errorf("remoteWrite.url %q: want one such as http://prometheus:9090/api/v1/write", o.URL))
	}
	if o.URL == "" && (o.CredentialFile != "" || len(o.Headers) > 0 || o.Timeout != 0) {
		errs = append(errs, errors.New("remoteWrite.url: missing, and other keys of remoteWrite are set"))
	}
	if o.CredentialFile != "" && !filepath.IsAbs(o.CredentialFile) {
		errs = append(errs, fmt.Errorf("remoteWrite.credentialFile %q: want an absolute path", o.CredentialFile))
	}
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("remoteWrite.timeout %s: want a duration above 0", o.Timeout))
	}
	return errors.Join(errs...)
}

// startRemoteWrite sends numbers of machine data, where the options name a server. Of
// several COs on one database one does.
func (c *CO) startRemoteWrite(s stores) error {
	o := c.opts.RemoteWrite
	if o.URL == "" {
		return nil
	}
	w, err := remotewrite.New(remotewrite.Options{
		Store: s.data, URL: o.URL, Headers: o.Headers, CredentialFile: o.CredentialFile, Timeout: o.Timeout,
		Lock:   func(ctx context.Context) (context.Context, func(), error) { return s.db.Lease(ctx, "remote write") },
		Logger: c.log, Registerer: c.opts.Registerer,
	})
	if err != nil {
		return err
	}
	c.parts.Go("remote write", func(ctx context.Context) {
		if err := w.Run(ctx); err != nil && ctx.Err() == nil {
			c.parts.Fail(fmt.Errorf("remote write: %w", err))
		}
	})
	return nil
}
