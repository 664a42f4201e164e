// Command colony is the command line of Colony and its roles: up, co, lo and en.
package main

import (
	"context"
	"os"

	"github.com/colonyfleet/colony/cli"
)

// version is the release in the file VERSION, with the commit where it is another one.
// The Makefile has the linker set it; a plain go build leaves dev.
var version = "dev"

func main() {
	os.Exit(cli.Main(context.Background(), version, os.Args[1:]))
}
