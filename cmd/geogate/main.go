// Command geogate is the gateway between a region's Kafka cluster and the other
// regions, and the tool with which operators ask a running one.
//
// This package reads configuration, starts and stops components, and turns
// errors into exit codes. What geogate does is in the packages that it wires.
package main

import (
	"io"
	"os"
)

func main() {
	if os.Getenv("GOGC") == "" {
		paceCollector()
	}
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is the whole program with its surroundings passed in. Standard output
// carries answers only, standard error everything that is for people.
func run(args, environ []string, stdout, stderr io.Writer) int {
	env := newEnvironment(environ)
	out, errs := &terminal{to: stdout}, &terminal{to: stderr}
	root := newRoot(env)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	if err := checkHelp(root, args); err != nil {
		return report(err, errs)
	}
	return report(root.Execute(), errs)
}
