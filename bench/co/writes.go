package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/colonyfleet/colony/co/repo/git"
)

// measureWrites measures what a write of one deployment costs in a deployments repo with a long
// history: the first after a start, those that follow, and many at the same time. It prints the
// time and the processor time of this program and of git.
func measureWrites(ctx context.Context, l load, dir string, out io.Writer) error {
	remote := remoteIn(dir)
	if err := git.InitBare(ctx, remote, "main"); err != nil {
		return err
	}
	if err := seedHistory(ctx, remote, l); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n### Writes of the deployments repo\n\n%d sites with a file each, %d commits.\n\n| what | ms | ms of processor |\n|---|---|---|\n", l.fleet.Sites, l.commits)
	for _, start := range []string{"without a cache", "over its cache"} {
		if err := writesAfterStart(ctx, l, dir, start, out); err != nil {
			return err
		}
	}
	return nil
}

// writesAfterStart opens the repo and writes to it.
func writesAfterStart(ctx context.Context, l load, dir, start string, out io.Writer) (err error) {
	row := func(what string, do func() error) error {
		began, used := time.Now(), processorTime()
		if err := do(); err != nil {
			return fmt.Errorf("%s, %s: %w", start, what, err)
		}
		_, err := fmt.Fprintf(out, "| %s, %s | %s | %s |\n", start, what, millis(time.Since(began)), millis(processorTime()-used))
		return err
	}
	var repo *git.Repo
	err = row("open", func() (err error) {
		repo, err = git.Open(ctx, git.Options{Dir: filepath.Join(dir, "cache"), Remote: remoteIn(dir)})
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, repo.Close()) }()
	n := 0
	write := func(site int) error {
		p := sitePath(site)
		last, err := repo.FileCommit(ctx, p)
		if err != nil {
			return err
		}
		_, err = repo.Commit(ctx, git.Change{
			Message: "change a deployment", Files: map[string][]byte{p: fmt.Appendf(nil, "%s write %d\n", start, site)}, Expect: map[string]string{p: last},
		})
		return err
	}
	if err := row("the first write", func() error { n++; return write(n) }); err != nil {
		return err
	}
	var list []time.Duration
	used := processorTime()
	for range l.repeats {
		began := time.Now()
		n++
		if err := write(n); err != nil {
			return err
		}
		list = append(list, time.Since(began))
	}
	used = (processorTime() - used) / time.Duration(l.repeats)
	sorted(list)
	fmt.Fprintf(out, "| %s, a write then: median | %s | %s |\n| %s, a write then: p99 | %s | |\n", start, millis(percentile(list, .5)), millis(used), start, millis(percentile(list, .99)))
	return row("64 writes at the same time", func() error {
		var calls sync.WaitGroup
		errs := make([]error, min(64, l.fleet.Sites-n))
		for i := range errs {
			calls.Go(func() { errs[i] = write(n + i + 1) })
		}
		calls.Wait()
		return errors.Join(errs...)
	})
}

func remoteIn(dir string) string { return filepath.Join(dir, "deployments.git") }

func sitePath(i int) string { return fmt.Sprintf("sites/site-%05d/web/deployment.yaml", i) }

// seedHistory writes the commits: the first has all files, each other one changes one of them.
func seedHistory(ctx context.Context, remote string, l load) error {
	cmd := exec.CommandContext(ctx, "git", "-C", remote, "fast-import", "--quiet")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("git fast-import: %w", err)
	}
	w := bufio.NewWriterSize(in, 1<<20)
	began := time.Now().Add(-time.Duration(l.commits) * time.Second).Unix()
	for i := range l.commits {
		fmt.Fprintf(w, "commit refs/heads/main\ncommitter bench <bench@localhost> %d +0000\ndata 1\nx\n", began+int64(i))
		files := []int{i % l.fleet.Sites}
		if i == 0 {
			files = files[:0]
			for site := range l.fleet.Sites {
				files = append(files, site)
			}
		}
		for _, site := range files {
			content := fmt.Sprintf("site %d, commit %d\n", site, i)
			fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", sitePath(site), len(content), content)
		}
	}
	err = errors.Join(w.Flush(), in.Close())
	return errors.Join(err, cmd.Wait())
}

// processorTime is what this program and the programs that it ran used so far.
func processorTime() (total time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return total
}
