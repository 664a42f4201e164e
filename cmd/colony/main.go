// Command colony is the command line of Colony and its roles: up, co, lo and en.
package main

import (
	"context"
	"os"

	"github.com/colonyfleet/colony/cli"
)

// version is set by the linker: -X main.version=….
var version = "dev"

func main() {
	os.Exit(cli.Main(context.Background(), version, os.Args[1:]))
}
