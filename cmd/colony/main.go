// Command colony is the command line of Colony and its roles: up, co, lo and en.
package main

import (
	"context"
	"io"
	"os"

	"github.com/sirupsen/logrus"

	"github.com/colonyfleet/colony/cli"
)

// version is the release in the file VERSION, with the commit where it is another one.
// The Makefile has the linker set it; a plain go build leaves dev.
var version = "dev"

func main() {
	// The Compose loader has a log of its own on the error output, of what Colony says as
	// warnings of a place or takes as it is meant.
	logrus.SetOutput(io.Discard)
	os.Exit(cli.Main(context.Background(), version, os.Args[1:]))
}
