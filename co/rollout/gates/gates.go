// Package gates asks the sources of gates of rollouts: a Prometheus server, or a web server at an address.
package gates

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/colonyfleet/colony/co/rollout"
)

// A Source is a server to ask. The yaml keys are those of the CO's configuration file.
type Source struct {
	// Name is how the files of fleet deployments name it.
	Name string `yaml:"name"`
	// Prometheus is the address of a server with the HTTP API of Prometheus, such as https://prometheus.example.
	Prometheus string `yaml:"prometheus,omitempty"`
	// Webhook is an address that answers to a POST, in place of Prometheus.
	Webhook string `yaml:"webhook,omitempty"`
	// TokenFile holds a bearer token (RFC 6750). It is read for each question. Empty: none is sent.
	TokenFile string `yaml:"tokenFile,omitempty"`
	// Timeout bounds a question. Default 10 s.
	Timeout time.Duration `yaml:"timeout,omitempty"`
}

const (
	defaultTimeout = 10 * time.Second
	mostSources    = 32
	// mostBytes bounds an answer.
	mostBytes = 1 << 20
	// mostReason bounds the reason of a webhook, in bytes.
	mostReason = 300
)

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Validate returns all faults of sources, each with its key in the configuration.
func Validate(sources []Source) error {
	var errs []error
	if len(sources) > mostSources {
		errs = append(errs, fmt.Errorf("rollouts.gates: %d sources: want at most %d", len(sources), mostSources))
	}
	names := map[string]bool{}
	for i, s := range sources {
		for _, err := range s.faults() {
			errs = append(errs, fmt.Errorf("rollouts.gates[%d].%w", i, err))
		}
		if names[s.Name] {
			errs = append(errs, fmt.Errorf("rollouts.gates[%d].name %q: another one has it", i, s.Name))
		}
		names[s.Name] = true
	}
	return errors.Join(errs...)
}

func (s Source) faults() (errs []error) {
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !nameForm.MatchString(s.Name) {
		add("name %q: want 1 to 63 lower-case letters, digits, and - between them", s.Name)
	}
	if (s.Prometheus == "") == (s.Webhook == "") {
		add("prometheus: want it or webhook, one of both")
	}
	for key, address := range map[string]string{"prometheus": s.Prometheus, "webhook": s.Webhook} {
		if u, err := url.Parse(address); address != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			add("%s %q: want an address such as https://prometheus.example", key, address)
		}
	}
	if s.TokenFile != "" && !filepath.IsAbs(s.TokenFile) {
		add("tokenFile %q: want an absolute path", s.TokenFile)
	}
	if s.Timeout < 0 || s.Timeout > time.Minute {
		add("timeout %s: want at most 1m; 0 is 10s", s.Timeout)
	}
	return errs
}

// An Asker asks sources. Its methods may be called concurrently.
type Asker struct {
	sources []Source
	client  *http.Client
}

// New returns the Asker of valid sources.
func New(sources []Source) *Asker {
	return &Asker{sources, &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (a *Asker) source(name string) *Source {
	i := slices.IndexFunc(a.sources, func(s Source) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &a.sources[i]
}

// Check returns what is wrong with a gate.
func (a *Asker) Check(g *rollout.Gate) error {
	s := a.source(g.Source)
	switch {
	case s == nil && len(a.sources) == 0:
		return fmt.Errorf("source %q: the configuration of the CO has no sources of gates (rollouts.gates)", g.Source)
	case s == nil:
		names := make([]string, len(a.sources))
		for i := range a.sources {
			names[i] = a.sources[i].Name
		}
		return fmt.Errorf("source %q: the configuration of the CO has %s", g.Source, strings.Join(names, ", "))
	case s.Webhook != "" && (g.Query != "" || g.Min != nil || g.Max != nil):
		return fmt.Errorf("source %s is a webhook, which decides by itself: leave out query, min and max", g.Source)
	case s.Prometheus != "" && (g.Query == "" || g.Min == nil && g.Max == nil):
		return fmt.Errorf("source %s is a Prometheus server: want a query, and min or max", g.Source)
	}
	return nil
}

// Ask asks the source of a gate. Every outcome is an answer, errors included.
func (a *Asker) Ask(ctx context.Context, g *rollout.Gate, about rollout.About) rollout.Answer {
	s := a.source(g.Source)
	if err := a.Check(g); err != nil {
		return rollout.Answer{Gate: g.Name, Reason: err.Error(), Unknown: true}
	}
	timeout := s.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ask := a.hook
	if s.Prometheus != "" {
		ask = a.query
	}
	reason, err := ask(ctx, s, g, about)
	if err != nil {
		return rollout.Answer{Gate: g.Name, Reason: "there is no answer: " + err.Error(), Unknown: true}
	}
	return rollout.Answer{Gate: g.Name, Reason: reason}
}

// query asks a Prometheus server (HTTP API, instant queries). Each series has to be within the bounds, and one at least has to be there.
func (a *Asker) query(ctx context.Context, s *Source, g *rollout.Gate, _ rollout.About) (reason string, err error) {
	body, err := a.post(ctx, s, strings.TrimSuffix(s.Prometheus, "/")+"/api/v1/query", "application/x-www-form-urlencoded", []byte(url.Values{"query": {g.Query}}.Encode()))
	if err != nil {
		return "", err
	}
	var answer struct {
		Status   string   `json:"status"`
		Error    string   `json:"error"`
		Warnings []string `json:"warnings"`
		Data     struct {
			Type   string          `json:"resultType"`
			Result json.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		return "", fmt.Errorf("it is none of Prometheus: %s", shortened(string(body)))
	}
	if len(answer.Warnings) > 0 { // of a part of the data that is away, for example
		return "", fmt.Errorf("the server warns of the result: %s", shortened(strings.Join(answer.Warnings, "; ")))
	}
	var list []sample
	switch answer.Data.Type {
	case "vector":
		var series []struct {
			Value *sample `json:"value"`
		}
		err = json.Unmarshal(answer.Data.Result, &series)
		for _, one := range series {
			if one.Value == nil {
				return "", errors.New("the query yields a series without a number, such as a native histogram: want one that yields numbers, as histogram_quantile does")
			}
			list = append(list, *one.Value)
		}
	case "scalar":
		list = make([]sample, 1)
		err = json.Unmarshal(answer.Data.Result, &list[0])
	default:
		err = fmt.Errorf("a result of type %q: want a vector or a scalar", answer.Data.Type)
	}
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "", errors.New("the query yields no series")
	}
	for _, v := range list {
		if why := g.Within(float64(v)); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// A sample is a value as Prometheus writes it: a time, and the value as a text.
type sample float64

// UnmarshalJSON implements json.Unmarshaler.
func (s *sample) UnmarshalJSON(b []byte) error {
	var pair []any
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return errors.New("a sample without time and value")
	}
	text, _ := pair[1].(string) // which is no number otherwise
	v, err := strconv.ParseFloat(text, 64)
	*s = sample(v)
	return err
}

// hook asks a webhook: an answer of 200 says whether it passes.
func (a *Asker) hook(ctx context.Context, s *Source, _ *rollout.Gate, about rollout.About) (reason string, err error) {
	question, err := json.Marshal(about)
	if err != nil {
		return "", err
	}
	body, err := a.post(ctx, s, s.Webhook, "application/json", question)
	if err != nil {
		return "", err
	}
	var answer struct {
		Allowed *bool  `json:"pass"`
		Reason  string `json:"reason"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Allowed == nil {
		return "", fmt.Errorf(`want {"pass": true}, or {"pass": false, "reason": "why"}, got %s`, shortened(string(body)))
	}
	switch {
	case *answer.Allowed:
		return "", nil
	case answer.Reason == "":
		return "it does not pass", nil
	}
	return shortened(answer.Reason), nil
}

func (a *Asker) post(ctx context.Context, s *Source, address, kind string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", kind)
	if s.TokenFile != "" {
		token, err := os.ReadFile(s.TokenFile)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, mostBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(answer) > mostBytes:
		return nil, fmt.Errorf("it has more than %d bytes", mostBytes)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", resp.Status, shortened(string(answer)))
	}
	return answer, nil
}

// shortened cuts a foreign text for a message.
func shortened(s string) string {
	if s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "\uFFFD"); len(s) > mostReason {
		return strings.ToValidUTF8(s[:mostReason], "") + "…"
	}
	return s
}
