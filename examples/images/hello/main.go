// Command hello is the sample application: a small HTTP server that greets.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "health":
			os.Exit(health())
		case "watch":
			watch()
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "%s, %s! I am version %s.\n", os.Getenv("GREETING"), os.Getenv("ADDRESSEE"), os.Getenv("APP_VERSION"))
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	srv := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		stopped <- srv.Shutdown(context.WithoutCancel(ctx))
	}()
	slog.InfoContext(ctx, "hello is listening", "addr", srv.Addr)
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		slog.ErrorContext(ctx, "listen", "err", err)
		os.Exit(1)
	}
	<-stopped
}

// health asks the server in the same container: the image holds nothing else that could.
func health() int {
	client := http.Client{Timeout: 2 * time.Second}
	resp, err := client.Get("http://127.0.0.1:8080/healthz")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		fmt.Println(resp.Status)
		return 1
	}
	return 0
}

// watch says every second how the server in the same container is, until it is stopped.
func watch() {
	for range time.Tick(time.Second) {
		if health() == 0 {
			fmt.Println(time.Now().Format(time.TimeOnly), "ok")
		}
	}
}
