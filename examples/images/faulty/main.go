// Command faulty is a sample application that fails in the way that its argument names:
// "exit" ends at once with status 3, "sick" runs and is never healthy.
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
		fmt.Println("the sample is never healthy")
		os.Exit(1)
	case "sick":
		done := make(chan os.Signal, 1)
		signal.Notify(done, syscall.SIGTERM, os.Interrupt)
		<-done
	default:
		fmt.Println("the sample exits at once, on purpose")
		os.Exit(3)
	}
}
