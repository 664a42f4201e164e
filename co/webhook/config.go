package webhook

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol/siteset"
)

// A Hook is where some events are posted. The yaml keys are those of the CO's configuration file.
type Hook struct {
	// Name is under which the CO records how far it has come: a hook with another name begins anew.
	Name string `yaml:"name"`
	// URL is where events are posted.
	URL string `yaml:"url"`
	// Kinds are the kinds of events that are posted.
	Kinds []string `yaml:"kinds"`
	// Sites are those whose events are posted: names, or how names begin with a * after it. Absent: all, and events of none.
	Sites []string `yaml:"sites,omitempty"`
	// SecretFile holds what the receiver checks that a post is the CO's by: whsec_ and 24 to 64 bytes in base64, one secret
	// on a line; each signs. It is read for each post. Empty: posts are not signed.
	SecretFile string `yaml:"secretFile,omitempty"`
	// Timeout bounds one post. Default 15 s.
	Timeout time.Duration `yaml:"timeout,omitempty"`
}

const (
	defaultTimeout = 15 * time.Second
	mostHooks      = 32
)

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Validate returns all faults of hooks, each with its key in the configuration.
func Validate(hooks []Hook) error {
	var errs []error
	if len(hooks) > mostHooks {
		errs = append(errs, fmt.Errorf("webhooks: %d hooks: want at most %d", len(hooks), mostHooks))
	}
	names := map[string]bool{}
	for i, h := range hooks {
		for _, err := range h.faults() {
			errs = append(errs, fmt.Errorf("webhooks[%d].%w", i, err))
		}
		if names[h.Name] {
			errs = append(errs, fmt.Errorf("webhooks[%d].name %q: another one has it", i, h.Name))
		}
		names[h.Name] = true
	}
	return errors.Join(errs...)
}

func (h Hook) faults() (errs []error) {
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !nameForm.MatchString(h.Name) {
		add("name %q: want 1 to 63 lower-case letters, digits, and - between them", h.Name)
	}
	if u, err := url.Parse(h.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		add("url %q: want one such as https://chat.example/hooks/colony", h.URL)
	}
	if len(h.Kinds) == 0 {
		add("kinds: missing; want some of the kinds of events, as proposal_opened and site_offline")
	}
	for _, k := range h.Kinds {
		if !slices.Contains(fleet.EventKinds, k) {
			add("kinds: there are no events of kind %q", k)
		}
	}
	if _, err := siteset.Parse(h.Sites); err != nil {
		add("sites: %w", err)
	}
	if h.Sites != nil && len(h.Sites) == 0 {
		add("sites: the list has no site; leave it out for all sites")
	}
	if h.SecretFile != "" && !filepath.IsAbs(h.SecretFile) {
		add("secretFile %q: want an absolute path", h.SecretFile)
	}
	if h.Timeout < 0 {
		add("timeout %s: want a duration above 0", h.Timeout)
	}
	return errs
}
