package broker_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/colonyfleet/colony/broker"
)

// asChild in the environment makes the test program a broker and nothing else. Its value is
// the directory of the sessions, or "-" for none.
const asChild = "COLONY_TEST_BROKER_CHILD"

// serveChild runs a broker, prints its address, and ends with its input. A line of input "full" makes
// its disk full, another one not any more.
func serveChild() int {
	o := broker.Options{
		Access: free{}, Logger: slog.New(slog.DiscardHandler),
		Listeners: []broker.Listener{{Name: "main", Network: broker.TCP, Address: "127.0.0.1:0"}},
	}
	if dir := os.Getenv(asChild); dir != "-" {
		o.Sessions.Dir = dir
	}
	b, err := broker.New(o)
	if err == nil {
		err = b.Start(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(b.Addr("main"))
	signal.Ignore(syscall.SIGXFSZ)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() { // ends with the parent
		var old syscall.Rlimit
		err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old)
		now := old
		if now.Cur = old.Max; in.Text() == "full" {
			now.Cur = 100 // no file grows past it: any write to a larger one fails
		}
		if err == nil {
			err = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &now)
		}
		fmt.Println("done", err)
	}
	return 0
}

// A child is a broker in a process of its own.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	addr string
	end  func()
}

// startChild runs a broker with sessions in dir, "-" for none, until the end of the test or its kill.
func startChild(t *testing.T, dir string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startCommand(t, dir, exec.Command(self))
}

// startCommand is startChild with a command that runs the test program.
func startCommand(t *testing.T, dir string, cmd *exec.Cmd) *child {
	t.Helper()
	var err error
	c := &child{t: t, cmd: cmd}
	c.cmd.Env = append(os.Environ(), asChild+"="+dir)
	c.cmd.Stderr = t.Output()
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.end = sync.OnceFunc(func() {
		_ = c.in.Close() // ends it
		_ = c.cmd.Wait() // it may have been killed
	})
	t.Cleanup(c.end)
	c.out = bufio.NewReader(out)
	c.addr = c.line()
	return c
}

func (c *child) line() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// say gives the child an order, and waits until it is carried out.
func (c *child) say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
	if got := c.line(); got != "done <nil>" {
		c.t.Fatalf("the child says %q", got)
	}
}

// kill ends the child as kill -9 does.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	c.end()
}
