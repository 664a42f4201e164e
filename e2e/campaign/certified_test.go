package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/colonyfleet/colony/co/keys"
	"github.com/colonyfleet/colony/internal/freeport"
)

// certify has the fleet, of which nothing was started yet, run as colony up runs one: machines have
// certificates, and what they are made to run is signed.
func (c *colony) certify() {
	c.t.Helper()
	ports := freeport.Ports(c.t, 6)
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	signing := filepath.Join(c.dir, "keys")
	root := filepath.Join(signing, keys.RootPublic)
	c.change(c.co, "", fmt.Sprintf("identity: {enrol: %q, mqtt: %q, http: %q}\nsigning: {dir: %s}\n", addr(0), addr(1), addr(2), signing))
	c.change(c.lo, "co: ", fmt.Sprintf("co: {mqtt: [\"tls://%s\"], enrol: [%q], http: \"https://%s\", keepAlive: 5s, maxBackoff: 500ms}\nidentity: {enrol: %q, mqtt: %q, http: %q}\nrootKeyFile: %s\n",
		addr(1), addr(0), addr(2), addr(3), addr(4), addr(5), root))
	c.change(c.en, "lo: ", fmt.Sprintf("lo: {mqtt: [\"tls://%s\"], enrol: [%q], keepAlive: 5s}\nrootKeyFile: %s\n", addr(4), addr(3), root))
	c.change(c.en, "engine: ", fmt.Sprintf("engine: {address: %s, mirror: \"https://%s\", mirrorOnly: true}\n", c.daemon.Socket, addr(5)))
	c.must("ca", "init", "--config", c.co.config)
	c.must("co", "keys", "init", signing)
	c.admit = func(p *tier) {
		args := map[string][]string{"lo": {"site", "add", site, "--replace"}, "en": {"node", "token", site, "--replace"}}[p.role]
		if args == nil {
			return // the CO certifies itself
		}
		var token string
		for _, word := range strings.Fields(c.must(args...)) {
			if strings.Count(word, ".") == 2 && len(word) > 64 { // id, secret and fingerprint
				token = word
			}
		}
		dir := filepath.Join(p.state, "identity")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			c.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token+"\n"), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

// change replaces the line of a configuration that begins with a key, or adds one.
func (c *colony) change(p *tier, begins, to string) {
	c.t.Helper()
	b, err := os.ReadFile(p.config)
	if err != nil {
		c.t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if begins == "" || !strings.HasPrefix(line, begins) {
			out.WriteString(line)
		}
	}
	if err := os.WriteFile(p.config, []byte(out.String()+to), 0o600); err != nil {
		c.t.Fatal(err)
	}
}
