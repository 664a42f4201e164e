// Command toolbox is the one program of the test images. Its first argument says what
// it does.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	args := os.Args
	if filepath.Base(args[0]) == "sh" { // as a shell runs "/toolbox verb arguments…"
		if args = strings.Fields(args[2]); args[0] == "pg_isready" {
			return // of the stand-in for PostgreSQL
		}
	}
	if err := run(args[1], args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(verb string, args []string) error {
	switch verb {
	case "wait": // until asked to stop
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		fmt.Println("ready")
		<-term
		return nil
	case "hang": // until killed
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		for {
			<-time.After(time.Hour)
		}
	case "deaf": // until killed, also where its terminal is gone
		signal.Ignore(syscall.SIGHUP)
		return run("hang", nil)
	case "parent": // [leave]: starts a deaf child, and hangs, or ends
		child := exec.Command("/proc/self/exe", "deaf")
		child.Args[0] = "/toolbox"
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		if err == nil {
			_, err = io.ReadFull(out, make([]byte, len("ready\n")))
		}
		if err != nil || len(args) > 0 {
			return err
		}
		fmt.Println("ready")
		for {
			<-time.After(time.Hour)
		}
	case "usr1": // until SIGUSR1
		usr1 := make(chan os.Signal, 1)
		signal.Notify(usr1, syscall.SIGUSR1)
		fmt.Println("ready")
		<-usr1
		return nil
	case "linger": // seconds, after it was asked to stop
		n, err := strconv.Atoi(args[0])
		if err == nil {
			err = run("wait", nil)
		}
		fmt.Println("asked to stop")
		<-time.After(time.Duration(n) * time.Second)
		return err
	case "exit": // code [message]
		fmt.Println(strings.Join(args[1:], " "))
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		os.Exit(code)
	case "blame": // code, line for stderr, line for stdout: writes both, in this order
		fmt.Fprintln(os.Stderr, args[1])
		fmt.Println(args[2])
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		os.Exit(code)
	case "count": // writes numbered lines to both outputs, as fast as they are taken, until asked to stop
		return count()
	case "serve": // port text
		return http.ListenAndServe(":"+args[0], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, args[1])
		}))
	case "get": // url
		c := http.Client{Timeout: 5 * time.Second}
		r, err := c.Get(args[0])
		if err != nil {
			return err
		}
		defer r.Body.Close()
		_, err = io.Copy(os.Stdout, r.Body)
		return err
	case "lookup": // name
		ips, err := net.LookupHost(args[0])
		fmt.Println(strings.Join(ips, " "))
		return err
	case "dig": // name type(1 A, 28 AAAA …) [udp|tcp]: asks DNS, and leaves /etc/hosts out
		return dig(args)
	case "cat":
		for _, path := range args {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			os.Stdout.Write(b)
		}
	case "append", "flaky": // path [n]: adds a line; flaky fails until there are n
		f, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		fmt.Fprintln(f, "line")
		f.Close()
		if verb == "flaky" {
			b, _ := os.ReadFile(args[0])
			if n, err := strconv.Atoi(args[1]); err != nil || strings.Count(string(b), "\n") < n {
				return fmt.Errorf("less than %d lines (%v)", n, err)
			}
		}
	case "isatty": // path: writes there whether the output is a terminal, and waits
		info, err := os.Stdout.Stat()
		if err != nil {
			return err
		}
		target, _ := os.Readlink("/proc/self/fd/1")
		tty := info.Mode()&os.ModeCharDevice != 0 && target != "/dev/null"
		if err := os.WriteFile(args[0], []byte(strconv.FormatBool(tty)), 0o644); err != nil {
			return err
		}
		return run("wait", nil)
	case "stdin": // path: writes there "eof" at the end of the input, and waits
		if err := os.WriteFile(args[0], []byte("open"), 0o644); err != nil {
			return err
		}
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.WriteFile(args[0], []byte("eof"), 0o644)
		}()
		return run("wait", nil)
	case "copy": // writes what it reads, until that ends
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	case "shell": // at a terminal: answers each line, "size" with the columns and rows, "exit CODE" with its end
		return shell()
	case "readlink":
		target, err := os.Readlink(args[0])
		fmt.Println(target)
		return err
	case "mkdir":
		return os.MkdirAll(args[0], 0o755)
	case "chmod":
		return os.Chmod(args[0], 0o700)
	case "stat": // path: its mode as chmod(1) has it, its owner and group
		var st syscall.Stat_t
		if err := syscall.Stat(args[0], &st); err != nil {
			return err
		}
		fmt.Printf("%o %d %d\n", st.Mode&0o7777, st.Uid, st.Gid)
	case "udp": // port: answers each packet with itself
		c, err := net.ListenPacket("udp", ":"+args[0])
		if err != nil {
			return err
		}
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return err
			}
			c.WriteTo(b[:n], from)
		}
	case "eat": // bytes of memory, then waits
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "the last words")
		b := make([]byte, n)
		for i := range b {
			b[i] = 1
		}
		return run("wait", nil)
	case "write": // path text
		return os.WriteFile(args[0], []byte(args[1]), 0o644)
	case "env": // name
		fmt.Println(args[0] + "=" + os.Getenv(args[0]))
	case "id":
		host, err := os.Hostname()
		dir, _ := os.Getwd()
		fmt.Println(os.Getuid(), os.Getgid(), host, dir, os.Getenv("COLOUR"), os.Getenv("SIZE"))
		return err
	case "spew": // bytes
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		line := strings.Repeat("x", 99) + "\n"
		for ; n > 0; n -= len(line) {
			fmt.Print(line)
		}
		return run("wait", nil)
	default:
		return fmt.Errorf("toolbox: unknown verb %q", verb)
	}
	return nil
}

// count writes to each output lines that begin with their numbers, and a last one that ends with "last".
func count() error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	out, errs := bufio.NewWriterSize(os.Stdout, 32<<10), bufio.NewWriterSize(os.Stderr, 32<<10)
	fill := strings.Repeat("x", 200)
	for n := 1; ; n++ {
		fmt.Fprintln(out, n, fill[:n%len(fill)])
		if n%8 == 0 {
			fmt.Fprintln(errs, n/8, fill[:n%len(fill)])
		}
		select {
		case <-term:
			fmt.Fprintln(out, n+1, "last")
			fmt.Fprintln(errs, n/8+1, "last")
			return errors.Join(out.Flush(), errs.Flush())
		default:
		}
	}
}

// dig asks the name server that Docker's containers have, and prints the code of its
// answer and the addresses in it.
func dig(args []string) error {
	network := "udp"
	if len(args) > 2 {
		network = args[2]
	}
	kind, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	q := []byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for _, label := range strings.Split(args[0], ".") {
		q = append(append(q, byte(len(label))), label...)
	}
	q = append(q, 0, 0, byte(kind), 0, 1)
	c, err := net.DialTimeout(network, "127.0.0.11:53", 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	skip := 0
	if network == "tcp" {
		q, skip = append([]byte{0, byte(len(q))}, q...), 2
	}
	if _, err := c.Write(q); err != nil {
		return err
	}
	a := make([]byte, 4096)
	n, err := c.Read(a)
	if err != nil {
		return err
	}
	a = a[skip:n]
	fmt.Print(a[3] & 15)
	size := map[int]int{1: 4, 28: 16}[kind]
	for i := 0; i < int(a[7]) && size > 0; i++ { // the addresses stand at the end
		end := len(a) - i*(size+12)
		fmt.Print(" ", net.IP(a[end-size:end]))
	}
	fmt.Println()
	return nil
}

// shell answers each line that is typed.
func shell() error {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	go func() {
		for range interrupts {
			fmt.Println("interrupted")
		}
	}()
	fmt.Print("$ ")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); fmt.Print("$ ") {
		switch word, rest, _ := strings.Cut(lines.Text(), " "); word {
		case "size":
			var size struct{ rows, columns, x, y uint16 }
			if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, 0, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
				fmt.Println("no terminal:", errno)
				continue
			}
			fmt.Printf("%dx%d\n", size.columns, size.rows)
		case "exit":
			code, err := strconv.Atoi(rest)
			if err != nil {
				return err
			}
			os.Exit(code)
		case "errors":
			fmt.Fprintln(os.Stderr, rest)
		default:
			fmt.Printf("got %q\n", lines.Text())
		}
	}
	return nil
}
