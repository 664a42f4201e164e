package layout

import (
	"strings"
	"testing"
)

func TestStray(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"deployments/berlin/x/deployment.yaml":     "",
		"sites/berlin/site.yaml":                   "",
		"sites/Berlin/site.yaml":                   "site name \"Berlin\"",
		"README.md":                                "",
		".pre-commit-config.yaml":                  "",
		".github/workflows/check.yml":              "",
		"deployments/berlin/x/notes.txt":           "",
		"loose.yaml":                               "the CO reads",
		"deployments/berlin/x/deploy.yml":          "a deployment is read from deployments/<site>/<name>/deployment.yaml only",
		"deployments/berlin/x/deployment.yml":      "a deployment is read from",
		"deployments/berlin/deployment.yaml":       "a deployment is read from",
		"deployments/loose.yaml":                   "a deployment is read from",
		"deployment/berlin/x/deployment.yaml":      "the CO reads",
		"sites/berlin.yaml":                        "a site's file is read from sites/<site>/site.yaml only",
		"sites/berlin/site.yml":                    "a site's file is read from",
		"site/berlin/site.yaml":                    "the CO reads",
		"deployments/berlin/x/deployment.yamll":    "a deployment is read from",
		"deployments/berlin/x/deployment.yaml.txt": "a deployment is read from",
		"deployments/berlin/x/deployment.yaml ":    "a deployment is read from",
		"deployments/berlin/x/deployment":          "a deployment is read from",
		"deployments/berlin/x/Deployment.YAML":     "a deployment is read from",
		"deployments/berlin/x/deployments.md":      "",
		"deployments/deployment.md":                "",
		"sites/berlin/x/deployment.yaml":           "the CO reads deployments/<site>/<name>/deployment.yaml, fleet/<name>/deployment.yaml and sites/<site>/site.yaml only",
		"Fleet/x/deployment.yaml":                  "the CO reads deployments/<site>/<name>/deployment.yaml, fleet/<name>/deployment.yaml and sites/<site>/site.yaml only",
		"fleet/x/deployment.yaml":                  "",
		"fleet/x/deployment.yamll":                 "a fleet deployment is read from",
		"deployments/berlin/x/y/deployment.yaml":   "a deployment is read from",
	} {
		if got := Stray(file); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}
