// The program iop-node: it runs beside AI providers, dials out to an Edge, and serves what the Edge sends.
package main

import (
	"os"

	"iop/packages/go/program"
)

func main() { os.Exit(program.Main(rootCommand())) }
