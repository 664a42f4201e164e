package co_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/colonyfleet/colony/co"
	"github.com/colonyfleet/colony/internal/smalldisk"
	"github.com/colonyfleet/colony/internal/testpart"
)

// TestFullDisk fills the disk of the state directory: the CO says so while it has nothing to write, and that it is over.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := smalldisk.New(t, 32<<20)
	b := start(t, func(o *co.Options) { o.StateDir = disk.Path("co") })
	says := func(what string, status int, text, metric string) {
		t.Helper()
		testpart.Within(t, time.Minute, what, func() error {
			got, said := b.ask(http.MethodGet, "/readyz", "", "")
			_, metrics := b.ask(http.MethodGet, "/metrics", "", "")
			if got != status || !strings.Contains(said, text) || !strings.Contains(metrics, "\n"+metric+"\n") {
				return fmt.Errorf("%d %s", got, said)
			}
			return nil
		})
	}
	says("ready", http.StatusOK, "ready", "colony_co_disk_full 0")
	disk.Fill()
	says("a full disk", http.StatusServiceUnavailable, "disk: the disk of "+disk.Path("co")+" is full", "colony_co_disk_full 1")
	if _, said := b.ask(http.MethodGet, "/api/v1/status", "", ""); !strings.Contains(said, `"disk":"the disk of `) {
		t.Errorf("status says %s", said)
	}
	disk.Free()
	says("room again", http.StatusOK, "ready", "colony_co_disk_full 0")
}
