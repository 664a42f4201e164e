package up

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
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/colonyfleet/colony/co/api"
	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/co/registry/archive"
	"github.com/colonyfleet/colony/co/registry/image"
	"github.com/colonyfleet/colony/co/registry/ociclient"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// The sample that is deployed, and its version.
const (
	sampleApp     = "hello"
	sampleVersion = "1.0.0"
	imageVersion  = "1.0.0"
)

// componentFolder is <component>-<version>.
var componentFolder = regexp.MustCompile(`^([a-z][a-z0-9-]*?)-([0-9].*)$`)

// pushSamples builds the samples' images and Compose archives and stores them in
// the CO's registry. What is there already is not pushed again.
func (o Options) pushSamples(ctx context.Context) error {
	reg := ociclient.New(ociclient.Options{Hosts: map[string]string{RegistryHost: o.HTTPAddr}})
	defer reg.Close()
	binaries, err := os.ReadDir(o.SampleBinaries)
	if err != nil {
		return fmt.Errorf("sample programs: %w: build them with \"make build\"", err)
	}
	for _, b := range binaries {
		content, err := os.ReadFile(filepath.Join(o.SampleBinaries, b.Name()))
		if err != nil {
			return fmt.Errorf("sample program: %w", err)
		}
		ref := RegistryHost + "/samples/" + b.Name() + ":" + imageVersion
		if _, err := reg.PushImage(ctx, ref, image.Image{
			Architecture: runtime.GOARCH, Entrypoint: []string{"/app"},
			Files: map[string]archive.File{"/app": {Mode: 0o755, Content: content}},
		}); err != nil {
			return fmt.Errorf("push image %s: %w", ref, err)
		}
	}
	components, err := filepath.Glob(filepath.Join(o.Samples, "components", "*"))
	if err != nil {
		return err
	}
	for _, dir := range components {
		name := filepath.Base(dir)
		parts := componentFolder.FindStringSubmatch(name)
		if parts == nil {
			return fmt.Errorf("sample component %s: want a folder named <component>-<version>", dir)
		}
		component, version := parts[1], parts[2]
		tgz, err := archive.Build(component, os.DirFS(dir))
		if err != nil {
			return fmt.Errorf("pack %s: %w", dir, err)
		}
		if _, err := reg.PushArchive(ctx, "oci://"+RegistryHost+"/samples/compose/"+component, version, tgz); err != nil {
			return fmt.Errorf("push component %s: %w", name, err)
		}
	}
	return nil
}

// sampleRegistry makes the sample registry a git repository, as users have one,
// and returns its path. It commits only what changed.
func (o Options) sampleRegistry(ctx context.Context, dir string) (string, error) {
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(o.Samples, "registry"))); err != nil {
		return "", fmt.Errorf("copy the sample registry: %w", err)
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"},
		{"add", "-A"},
		{"-c", "user.name=Colony", "-c", "user.email=colony@localhost", "commit", "-q", "-m", "Sample applications"},
	} {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(out))
		}
	}
	return dir, nil
}

// call is a request to the CO's API. It returns the status code of the answer.
func (o Options) call(ctx context.Context, method, path string, body, out any) (int, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+o.HTTPAddr+path, r)
	if err != nil {
		return 0, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return resp.StatusCode, err
	}
	if resp.StatusCode >= 300 {
		return resp.StatusCode, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	if out == nil {
		return resp.StatusCode, nil
	}
	return resp.StatusCode, json.Unmarshal(b, out)
}

// importSamples imports the sample registry into the catalog.
func (o Options) importSamples(ctx context.Context, source string) error {
	var answer api.ImportAnswer
	if _, err := o.call(ctx, http.MethodPost, "/api/v1/apps", map[string]string{"source": source}, &answer); err != nil {
		return err
	}
	var errs []error
	for _, r := range answer.Results {
		if r.Outcome == "refused" {
			errs = append(errs, fmt.Errorf("%s: %v", r.Path, r.Problems))
		}
	}
	return errors.Join(errs...)
}

// deploySample deploys the sample where the site does not have it.
func (o Options) deploySample(ctx context.Context) error {
	var d fleet.Deployment
	path := "/api/v1/deployments/" + url.PathEscape(o.Site) + "/" + sampleApp
	status, err := o.call(ctx, http.MethodGet, path, nil, &d)
	if err == nil && !d.Archived || err != nil && status != http.StatusNotFound {
		return err
	}
	_, err = o.call(ctx, http.MethodPost, "/api/v1/deployments", api.NewDeployment{
		Site: o.Site, App: sampleApp, Change: api.Change{Version: sampleVersion, Parameters: o.SampleParameters},
	}, nil)
	return err
}

// sampleInstalled returns nil once the sample runs on every node that has it.
func (o Options) sampleInstalled(ctx context.Context) error {
	var d fleet.Deployment
	if _, err := o.call(ctx, http.MethodGet, "/api/v1/deployments/"+url.PathEscape(o.Site)+"/"+sampleApp, nil, &d); err != nil {
		return err
	}
	if d.State == lifecycle.Installed && len(d.Nodes) > 0 {
		return nil
	}
	why := ""
	for _, n := range d.Nodes {
		if n.Code != "" {
			why += fmt.Sprintf("; %s: %s: %s", n.Node, n.Code, n.Message)
		}
	}
	return fmt.Errorf("the sample is %s %s%s", d.State, d.Problem, why)
}

// samplePort returns the port that the sample has on the gateway.
func (o Options) samplePort() any {
	if p, ok := o.SampleParameters["port"]; ok {
		return p
	}
	return defaultPort
}

// defaultPort is the default of the sample's parameter port.
const defaultPort = 8088

// siteOnline returns nil once the CO knows the site as online.
func (o Options) siteOnline(ctx context.Context) error {
	var s fleet.Site
	if _, err := o.call(ctx, http.MethodGet, "/api/v1/sites/"+url.PathEscape(o.Site), nil, &s); err != nil {
		return err
	}
	if !s.Online {
		return errors.New("the site is offline")
	}
	return nil
}

// nodeOnline returns nil once the CO knows the node as online.
func (o Options) nodeOnline(ctx context.Context) error {
	var n fleet.Node
	if _, err := o.call(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(o.Site)+"/"+url.PathEscape(o.Node), nil, &n); err != nil {
		return err
	}
	if !n.Online || n.Inventory == nil {
		return errors.New("the node is offline")
	}
	return nil
}
