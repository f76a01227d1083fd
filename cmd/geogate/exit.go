package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/geogate/geogate/internal/node"
	"github.com/geogate/geogate/internal/redact"
	"github.com/geogate/geogate/internal/strict"
	"github.com/geogate/geogate/router/ownership"
)

// The exit codes, of the one table that all commands share. A script may rely on
// each.
const (
	exitOK           = 0  // done
	exitInternal     = 1  // something went wrong that no other code names
	exitUsage        = 2  // the command line is wrong; nothing was done
	exitPrecondition = 3  // what the command needs is not so; nothing was done
	exitMoved        = 6  // another instance took over, or a unit was given away meanwhile
	exitInProgress   = 8  // what was started goes on
	exitLoss         = 10 // done, and something that was answered may not count
	exitUnreachable  = 12 // the gateway, or the register, cannot be reached
	exitRegression   = 13 // the register shows an epoch that was passed already
)

// resultExit is the exit code of a command that ended so; that of an end which this
// version does not know is exitInternal.
func resultExit(code ownership.ResultCode) int {
	switch code {
	case ownership.ResultDone:
		return exitOK
	case ownership.ResultPrecondition:
		return exitPrecondition
	case ownership.ResultMoved:
		return exitMoved
	case ownership.ResultInProgress:
		return exitInProgress
	case ownership.ResultLoss:
		return exitLoss
	case ownership.ResultUnreachable:
		return exitUnreachable
	case ownership.ResultRegressed:
		return exitRegression
	}
	return exitInternal
}

// exitError is an error that has its exit code.
type exitError struct {
	code int
	err  error
}

// Error implements error.
func (e *exitError) Error() string { return e.err.Error() }

// Unwrap is the error that ended the program.
func (e *exitError) Unwrap() error { return e.err }

// ExitCode is the code that the program ends with.
func (e *exitError) ExitCode() int { return e.code }

func exitWith(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// exitCode finds the code of an error.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, node.ErrSuperseded) {
		return exitMoved
	}
	if errors.Is(err, node.ErrRefused) {
		return exitPrecondition
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return exitInternal
}

// report prints the error, if there is one, and gives its code.
// Mistakes in a file are printed one per line, each after its place, in the form that
// editors jump by.
func report(err error, stderr io.Writer) int {
	var inFile *strict.Errors
	switch {
	case errors.As(err, &inFile):
		fmt.Fprintln(stderr, err)
	case err != nil && err.Error() != "":
		fmt.Fprintf(stderr, "geogate: %s\n", redact.Text(err.Error()))
	}
	return exitCode(err)
}
