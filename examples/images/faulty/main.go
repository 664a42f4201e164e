// Command faulty is a sample application that fails in the way it is told by
// its argument: "exit" at once with status 3, or "sick", running but never healthy.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	mode := "exit"
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	switch mode {
	case "check":
		fmt.Println("the sample never is healthy")
		os.Exit(1)
	case "sick":
		done := make(chan os.Signal, 1)
		signal.Notify(done, syscall.SIGTERM, os.Interrupt)
		<-done
	default:
		fmt.Println("the sample exits at once, as it was told")
		os.Exit(3)
	}
}
