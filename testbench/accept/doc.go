//go:build unix

// Accept proves geogate's first promises from outside: it starts two regions as
// ordinary processes, drives them over HTTP, cuts the lines between them, kills
// one, takes another's store away, and then counts and compares what lies in the
// logs and what each region shows.
//
// It knows nothing that a user could not know: the HTTP API, the configuration,
// the commands, the topics in Kafka, and the record format as documented. What
// the entities must be it computes itself, from both regions' logs, with the
// definition of the fold written down as plainly as possible (fold.go).
//
// Usage:
//
//	go run ./testbench/accept -kafka embedded|apache [-geogate BIN] [-data DIR]
//
// The data are the whole files in GEOGATE_DATA or -data, else the excerpts of
// testbench/data. Exit code 1 means that a check failed; its evidence is
// printed and the work directory is kept.
package main
