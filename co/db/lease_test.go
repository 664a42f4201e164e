package db_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/colonyfleet/colony/co/db"
	"github.com/colonyfleet/colony/internal/pgtest"
	"github.com/colonyfleet/colony/protocol"
)

// holderURL names the database of a process that holds a lease, as holder does.
const holderURL = "COLONY_TEST_LEASE_HOLDER"

// holder holds the lease of "work" in a process of its own. For each line that it reads it
// tries a transaction that is fenced, and says what became of it; one of "open" stays open
// until the next line.
func holder(url string) error {
	ctx := context.Background()
	d, err := db.Open(ctx, url, db.Options{MaxConns: 2})
	if err != nil {
		return err
	}
	held, _, err := d.Lease(ctx, "work")
	if err != nil {
		return err
	}
	fmt.Println("held")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		// Without the end of the lease, as what is under way does not notice it in time.
		err := d.Tx(context.WithoutCancel(held), "work", func(tx pgx.Tx) error {
			if err := d.Fence(context.WithoutCancel(held), tx); err != nil || in.Text() != "open" {
				return err
			}
			fmt.Println("open")
			in.Scan()
			_, err := tx.Exec(ctx, `select 1`)
			return err
		})
		outcome := "written"
		if err != nil {
			outcome = string(protocol.KindOf(err))
		}
		fmt.Println(outcome)
	}
	return in.Err()
}

// startHolder starts a holder, and returns its process, its input and its output.
func startHolder(t *testing.T, url string) (*os.Process, io.Writer, func(want string)) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), holderURL+"="+url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be stopped
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	return cmd.Process, in, func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the holder says %q, %v, want %q", lines.Text(), lines.Err(), want)
		}
	}
}

// TestLeaseOfStoppedHolder stops the process of a holder: another one has the lease soon, and
// what the first one still does when it goes on is refused. A transaction that was open does
// not hold the lease up.
func TestLeaseOfStoppedHolder(t *testing.T) {
	t.Parallel()
	for _, inTransaction := range []bool{false, true} {
		t.Run(fmt.Sprint("in a transaction ", inTransaction), func(t *testing.T) {
			t.Parallel()
			url := pgtest.New(t)
			d := open(t, url)
			process, in, says := startHolder(t, url+"&idle_in_transaction_session_timeout=2000")
			says("held")
			say := func(line string) {
				if _, err := fmt.Fprintln(in, line); err != nil {
					t.Fatal(err)
				}
			}
			say("try")
			says("written")
			if inTransaction {
				say("open")
				says("open")
			}
			if err := process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			held, release, err := d.Lease(ctx, "work")
			for protocol.KindOf(err) == protocol.Unavailable && ctx.Err() == nil {
				held, release, err = d.Lease(ctx, "work")
			}
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			if err := process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if inTransaction {
				say("commit")
				says("unavailable")
			}
			say("try")
			says("unavailable")
			if err := d.Tx(held, "work", func(tx pgx.Tx) error { return d.Fence(held, tx) }); err != nil || held.Err() != nil {
				t.Errorf("the new holder: %v, %v", err, held.Err())
			}
		})
	}
}

// TestLease hands a lease over when it is given back, and takes none away that is renewed.
func TestLease(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	a, b := open(t, url), open(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	held, release, err := a.Lease(ctx, "work")
	if err != nil {
		t.Fatal(err)
	}
	if _, releaseOther, err := b.Lease(ctx, "other work"); err != nil { // one of another name is free
		t.Fatal(err)
	} else {
		releaseOther()
	}
	// Longer than a lease lasts that is not renewed.
	short, end := context.WithTimeout(ctx, 12*time.Second)
	defer end()
	if _, _, err := b.Lease(short, "work"); err == nil || held.Err() != nil {
		t.Fatalf("the lease was given away: %v, %v", err, held.Err())
	}
	release()
	if held.Err() == nil {
		t.Error("the first one still believes to hold it")
	}
	second, releaseSecond, err := b.Lease(ctx, "work")
	if err != nil {
		t.Fatal(err)
	}
	defer releaseSecond()
	err = a.Tx(ctx, "work", func(tx pgx.Tx) error { return a.Fence(context.WithoutCancel(held), tx) })
	if protocol.KindOf(err) != protocol.Unavailable || !strings.Contains(err.Error(), "another replica") {
		t.Errorf("the first one may still write: %v", err)
	}
	if err := b.Tx(ctx, "work", func(tx pgx.Tx) error { return b.Fence(second, tx) }); err != nil {
		t.Errorf("the second one: %v", err)
	}
	if _, err := a.Exec(ctx, `update leases set token = token + 1 where name = 'work'`); err != nil {
		t.Fatal(err)
	}
	select {
	case <-second.Done():
	case <-ctx.Done():
		t.Error("the loss did not end the holder's context")
	}
}
