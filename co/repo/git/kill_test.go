package git

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The environment of this test binary when it is run as the victim.
const (
	victimDir    = "COLONY_TEST_GIT_CACHE"
	victimRemote = "COLONY_TEST_GIT_REMOTE"
)

// victim commits until it is killed, and says what was confirmed.
func victim(dir, remote string) {
	ctx := context.Background()
	r, err := Open(ctx, Options{Dir: dir, Remote: remote})
	for n := 0; err == nil; n++ {
		p := fmt.Sprintf("deployments/site/d-%d-%d/deployment.yaml", os.Getpid(), n)
		if _, err = r.Commit(ctx, Change{Message: p, Files: map[string][]byte{p: []byte(p)}}); err == nil {
			fmt.Println(p)
		}
	}
	fmt.Fprintln(os.Stderr, err)
}

// TestKilledAtAnyTime kills a process that commits, again and again, and expects that
// its cache serves at once and that nothing that was confirmed is lost.
func TestKilledAtAnyTime(t *testing.T) {
	t.Parallel()
	remote, dir := newRemote(t), filepath.Join(t.TempDir(), "cache")
	confirmed := map[string]bool{}
	for range 10 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), victimDir+"="+dir, victimRemote+"="+remote)
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		if !lines.Scan() {
			t.Fatalf("the victim committed nothing: %s", said.String())
		}
		confirmed[lines.Text()] = true
		// A timer, not a pause: the moment is to fall anywhere in a commit.
		kill := time.AfterFunc(rand.N(60*time.Millisecond), func() { _ = cmd.Process.Kill() })
		for lines.Scan() {
			confirmed[lines.Text()] = true
		}
		_ = cmd.Wait() // it was killed
		kill.Stop()

		r, err := Open(t.Context(), Options{Dir: dir, Remote: remote})
		must(t, err)
		put(t, r, "last", fmt.Sprint(len(confirmed)))
		s, err := r.Read(t.Context())
		must(t, err)
		for p := range confirmed {
			if string(s.Files[p]) != p {
				t.Errorf("%s was confirmed and is lost", p)
			}
		}
		must(t, r.Close())
	}
	byHand(t, remote, "fsck", "--strict")
	byHand(t, filepath.Join(dir, "repo.git"), "fsck", "--strict")
}
