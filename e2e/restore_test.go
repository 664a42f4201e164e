package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/internal/testproc"
)

// backupAndRestore saves the CO while it runs, and restores it on another machine: another database, and directories in which
// there is nothing.
func backupAndRestore(t *testing.T, c *colony) {
	dir := filepath.Join(t.TempDir(), "backup")
	c.must("co", "backup", dir, "--config", c.config("co"))
	for _, file := range []string{"database.dump", "deployments.bundle", "manifest.json", "co.yaml", "registry"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Errorf("the backup lacks %s: %v", file, err)
		}
	}
	c.refused(1, []string{"runs"}, "co", "restore", dir, "--config", c.config("co"))
	config, api := c.elsewhere(t, filepath.Join(dir, "co.yaml"))
	c.must("co", "restore", dir, "--config", config)
	c.refused(1, []string{"--replace"}, "co", "restore", dir, "--config", config)
	c.must("co", "restore", dir, "--config", config, "--replace")

	other := testproc.New(t, "the restored CO", filepath.Join(t.TempDir(), "co.log"))
	other.Start(bin("colony"), "co", "--config", config)
	defer other.Stop()
	c.eventually(time.Minute, "the restored CO knows what is deployed", func() error {
		if err := other.Running(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.Get("http://" + api + "/api/v1/deployments/" + site + "/hello")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var d fleet.Deployment
		if err := json.NewDecoder(resp.Body).Decode(&d); err != nil || d.App != "hello" || d.Digest == "" || d.Problem != "" {
			return fmt.Errorf("%+v, %w", d, errors.Join(err, errors.New("want it as it was")))
		}
		return nil
	})
}

// elsewhere writes the configuration of a CO on another machine, with a database and a deployments repo that are empty, and returns
// its file and the address of the API.
func (c *colony) elsewhere(t *testing.T, file string) (config, api string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	value := func(key string) string {
		t.Helper()
		m := regexp.MustCompile(`(?m)^ *` + key + `: (\S+)$`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no %s in %s", key, text)
		}
		return m[1]
	}
	database := value("databaseURL")
	if raw, err := exec.Command("psql", "--no-psqlrc", "--quiet", "-c", "create database elsewhere", database).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	dir := t.TempDir()
	repo := filepath.Join(dir, "deployments.git")
	if raw, err := exec.Command("git", "init", "--quiet", "--bare", "-b", "main", repo).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	replace := []string{
		database, strings.Replace(database, "/postgres?", "/elsewhere?", 1), value("remote"), repo,
		"stateDir: " + value("stateDir"), "stateDir: " + filepath.Join(dir, "co"), "dir: " + value("dir"), "dir: " + filepath.Join(dir, "keys"),
	}
	api = value("http") // the first one, of the API
	addresses := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(text, -1)
	ports := freeport.Ports(t, len(addresses))
	for i, a := range addresses {
		other := fmt.Sprintf("127.0.0.1:%d", ports[i])
		if replace = append(replace, a, other); a == api {
			api = other
		}
	}
	config = filepath.Join(dir, "co.yaml")
	if err := os.WriteFile(config, []byte(strings.NewReplacer(replace...).Replace(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	return config, api
}
