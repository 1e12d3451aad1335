// The program iop-edge: the side with an address, which nodes dial and API clients use.
package main

import (
	"os"

	"iop/packages/go/program"
)

func main() { os.Exit(program.Main(rootCommand())) }
