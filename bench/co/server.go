package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/co/db/dbtest"
	"github.com/colonyfleet/colony/internal/privatepg"
)

// A server is a PostgreSQL with the schema of the CO, which flushes to disk.
type server struct {
	cluster *privatepg.Cluster
	// delay is a file with the microseconds that each flush takes longer; "" where this
	// machine cannot slow them.
	delay string
}

// slowFlush makes each flush of the server take longer, as a disk of another kind
// would: the library stands between PostgreSQL and the system's.
const slowFlush = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
static void wait_a_moment(void) {
	long us = 0;
	FILE *f = fopen(DELAY, "r");
	if (!f) return;
	if (fscanf(f, "%ld", &us) != 1) us = 0;
	fclose(f);
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };
	if (us > 0) nanosleep(&t, 0);
}
int fsync(int fd) {
	int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	wait_a_moment();
	return next(fd);
}
int fdatasync(int fd) {
	int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	wait_a_moment();
	return next(fd);
}
`

// startServer starts PostgreSQL as colony up does, with more memory.
func startServer(ctx context.Context, dir string) (*server, error) {
	s := &server{}
	bin, err := s.slowable(ctx, dir)
	if err != nil {
		return nil, err
	}
	s.cluster, err = privatepg.Start(ctx, privatepg.Options{
		Dir: dir + "/pg", BinDir: bin, DieWithParent: true,
		Settings: map[string]string{
			"max_connections": "100", "shared_buffers": "1GB", "max_wal_size": "8GB", "maintenance_work_mem": "256MB", "jit": "off",
		},
	})
	return s, err
}

// slowable returns a directory with the programs of PostgreSQL whose server can be made
// to flush slowly, or "" where there is no C compiler.
func (s *server) slowable(ctx context.Context, dir string) (string, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return "", nil //nolint:nilerr // the cases with slow flushes are left out, and the table says so
	}
	programs, err := privatepg.BinDir("*")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	delay, library := filepath.Join(bin, "delay"), filepath.Join(bin, "slowflush.so")
	compile := exec.CommandContext(ctx, cc, "-shared", "-fPIC", "-O2", fmt.Sprintf("-DDELAY=%q", delay), "-x", "c", "-o", library, "-", "-ldl")
	compile.Stdin = strings.NewReader(slowFlush)
	if out, err := compile.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the library that slows flushes: %w: %s", err, out)
	}
	script := fmt.Sprintf("#!/bin/sh\nLD_PRELOAD=%s exec %s/postgres \"$@\"\n", library, programs)
	if err := os.WriteFile(filepath.Join(bin, "postgres"), []byte(script), 0o755); err != nil {
		return "", err
	}
	if err := os.Symlink(filepath.Join(programs, "initdb"), filepath.Join(bin, "initdb")); err != nil && !os.IsExist(err) {
		return "", err
	}
	s.delay = delay
	return bin, s.slow(0)
}

// slow makes each flush take longer.
func (s *server) slow(by time.Duration) error {
	return os.WriteFile(s.delay, fmt.Append(nil, by.Microseconds()), 0o644)
}

func (s *server) url() string { return s.cluster.URL("postgres") }

func (s *server) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.cluster.Stop(ctx)
}

func (s *server) seed(ctx context.Context, size dbtest.Size) error {
	d, err := db.Open(ctx, s.url(), db.Options{}) // makes the schema
	if err != nil {
		return err
	}
	d.Close()
	conn, err := pgx.Connect(ctx, s.url())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return dbtest.Seed(ctx, conn, size)
}

// cpu is the processor time that the server's processes have used, also those that have
// ended. It counts in steps of 10 ms.
func (s *server) cpu() time.Duration {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	var sum int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid := filepath.Base(filepath.Dir(path))
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		own := pid == strconv.Itoa(s.cluster.PID())
		if !own && fields[1] != strconv.Itoa(s.cluster.PID()) {
			continue
		}
		count := 2
		if own {
			count = 4 // with the children that it has waited for
		}
		for _, f := range fields[11 : 11+count] {
			n, _ := strconv.Atoi(f) // a number, by proc(5)
			sum += n
		}
	}
	return time.Duration(sum) * 10 * time.Millisecond
}

// ownCPU is the processor time of this program, which plays the CO and its sites.
func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for the own process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
