package up

import (
	"os"
	"path/filepath"
	"time"

	"github.com/colonyfleet/colony/identity/store"
)

// guide prints the addresses of the fleet and commands to try.
func (s *supervisor) guide(took time.Duration) {
	o := s.opts
	until := "Ctrl-C"
	if os.Getenv(detachedEnv) != "" {
		until = "colony down --state-dir " + o.StateDir
	}
	s.say.say("\n%s, after %.1f s. It runs until %s.\n", Ready, took.Seconds(), until)
	for _, m := range s.anew {
		s.say.say("  %s was removed, and is back with another key\n", m)
	}
	s.say.say("  API         http://%s/api/v1   (OpenAPI: http://%s/openapi.json)", o.HTTPAddr, o.HTTPAddr)
	s.say.say("  metrics     http://%s/metrics and http://%s/metrics", o.HTTPAddr, o.LOHTTPAddr)
	s.say.say("  MQTT        CO %s, LO of %s %s: plain, for applications and devices", o.COMQTTAddr, o.Site, o.LOMQTTAddr)
	s.say.say("  machines    mutual TLS at the CO %s and the LO %s; the root of the certificates is in %s", o.COTLSAddr, o.LOTLSAddr, store.Dir(s.dir.sub("co")))
	s.say.say("  git         %s", o.GitRemote)
	s.say.say("  logs        %s", s.dir.sub("logs"))
	if o.Samples != "" {
		s.say.say("  sample      http://127.0.0.1:%v/", o.samplePort())
	}
	program := "colony"
	if exe, err := os.Executable(); err == nil {
		program = exe
	}
	if rel, err := filepath.Rel(cwd(), program); err == nil && len(rel) < len(program) {
		program = rel
	}
	env := ""
	if o.HTTPAddr != DefaultOptions().HTTPAddr {
		env = "COLONY_URL=http://" + o.HTTPAddr + " "
	}
	s.say.say("\nTry, in another terminal:\n")
	for _, args := range o.suggestions() {
		s.say.say("  %s%s %s", env, program, args)
	}
	s.say.say("")
}

// suggestions are command lines to try; the last one is lastSuggestion.
func (o Options) suggestions() []string {
	all := []string{"status", "node list", "site show " + o.Site}
	if o.Samples != "" {
		all = append(all,
			"deployment show "+o.Site+"/"+sampleApp,
			"deploy "+sampleApp+"@1.1.0 --site "+o.Site+" --set addressee=Factory --wait",
			"deploy "+sampleApp+"@1.2.0-exits --site "+o.Site+" --wait      # fails on purpose, and is rolled back",
			"deployment history "+o.Site+"/"+sampleApp)
	}
	return append(all, lastSuggestion)
}

// lastSuggestion ends the guide: relay waits for it.
const lastSuggestion = "events -f"

func cwd() string {
	dir, err := os.Getwd()
	if err != nil {
		return "/"
	}
	return dir
}
