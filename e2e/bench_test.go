package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/internal/freeport"
	"github.com/colonyfleet/colony/protocol/lifecycle"
)

// BenchmarkDeploy measures a deployment of an image that the site's cache holds,
// from the API call until the CO's database says INSTALLED, beside `ctr run` of
// the same image on the same daemon, in turn. It reports medians. Run it with
// make bench.
func BenchmarkDeploy(b *testing.B) {
	c := newColony(b)
	c.up()
	socket := filepath.Join(c.dir, "containerd", "containerd.sock")
	image := ctrImage(b, socket)
	port := freeport.Ports(b, 1)[0]
	var deploys, peers []time.Duration
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("bench-%d", i)
		began := time.Now()
		c.must("deploy", "hello@1.0.0", "--site", site, "--name", name, "--set", fmt.Sprintf("port=%d", port))
		c.eventually(time.Minute, "it is INSTALLED", func() error {
			d, err := c.deployment(name)
			if err == nil && d.State != lifecycle.Installed {
				err = fmt.Errorf("it is %s", d.State)
			}
			return err
		})
		deploys = append(deploys, time.Since(began))
		c.must("deployment", "delete", site+"/"+name, "--wait")

		began = time.Now()
		ctr(b, socket, "run", "-d", image, name)
		peers = append(peers, time.Since(began))
		ctr(b, socket, "task", "rm", "-f", name)
		ctr(b, socket, "container", "rm", name)
	}
	slices.Sort(deploys)
	slices.Sort(peers)
	deploy, peer := deploys[len(deploys)/2], peers[len(peers)/2]
	b.ReportMetric(float64(deploy.Milliseconds()), "ms-deploy-median")
	b.ReportMetric(float64(peer.Milliseconds()), "ms-ctr-run-median")
	b.ReportMetric(float64((deploy - peer).Milliseconds()), "ms-beyond-ctr-run")
	b.ReportMetric(float64(deploy)/float64(peer), "ratio")
	agentFootprint(b, c)
}

func ctr(b *testing.B, socket string, args ...string) string {
	b.Helper()
	out, err := exec.Command("ctr", append([]string{"-a", socket, "-n", "colony"}, args...)...).CombinedOutput()
	if err != nil {
		b.Fatalf("ctr %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// ctrImage returns the name of the sample's image in containerd.
func ctrImage(b *testing.B, socket string) string {
	b.Helper()
	for _, name := range strings.Fields(ctr(b, socket, "image", "ls", "-q")) {
		if strings.Contains(name, "samples/hello") {
			return name
		}
	}
	b.Fatal("the sample's image is not in containerd")
	return ""
}

// agentFootprint reports the size of the agent's binary and its resident memory.
func agentFootprint(b *testing.B, c *colony) {
	b.Helper()
	fi, err := os.Stat(bin("colony-en"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(fi.Size())/1e6, "MB-agent-binary")
	pid, err := c.pid("en")
	if err != nil {
		b.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(kb)/1000, "MB-agent-RSS")
		}
	}
}
