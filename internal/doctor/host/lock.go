package host

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Locked reports whether a process holds the lock file at path with flock, as a tier does
// while it runs. It does not take the lock itself, which could keep a tier from starting.
func Locked(path string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return false
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return false
	}
	defer f.Close()
	// 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
	end := fmt.Sprintf(":%d", st.Ino)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 5 && fields[1] == "FLOCK" && strings.HasSuffix(fields[5], end) {
			return true
		}
	}
	return false
}

// Running reports whether a tier runs: its HTTP listener, given as host:port, answers, or
// it holds its lock file. Either may be empty.
func Running(listener, lock string) func(context.Context) bool {
	return func(ctx context.Context) bool {
		if lock != "" && Locked(lock) {
			return true
		}
		target := URL(listener, "/healthz")
		if target == "" {
			return false
		}
		_, err := Get(ctx, target)
		return err == nil
	}
}
