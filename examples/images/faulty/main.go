// Command faulty is a sample application that fails in the way that its argument names:
// "exit" ends at once with status 3, "late" after 3 s, "sick" runs and is never healthy.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	mode := "exit"
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	switch mode {
	case "check":
		fmt.Println("the sample is never healthy")
		os.Exit(1)
	case "sick":
		done := make(chan os.Signal, 1)
		signal.Notify(done, syscall.SIGTERM, os.Interrupt)
		<-done
	case "late":
		<-time.After(3 * time.Second)
		fmt.Println("the sample exits after a while, on purpose")
		os.Exit(3)
	default:
		fmt.Println("the sample exits at once, on purpose")
		os.Exit(3)
	}
}
