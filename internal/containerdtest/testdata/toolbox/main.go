// Toolbox is the one program of the test images. Its first argument says what
// it does.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
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
	case "exit": // code [message]
		fmt.Println(strings.Join(args[1:], " "))
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		os.Exit(code)
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
	case "cat":
		for _, path := range args {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			os.Stdout.Write(b)
		}
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
