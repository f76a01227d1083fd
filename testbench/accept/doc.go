//go:build unix

// Accept proves geogate's promises from outside: it starts regions as ordinary
// processes, drives them over HTTP, cuts the lines between them, kills and stops
// them, takes a store away, and then counts and compares what lies in the logs and
// what each region shows.
//
// It knows nothing that a user could not know: the HTTP API, the configuration,
// the commands, the topics in Kafka, and the record format as documented. What
// the entities must be it computes itself, from both regions' logs, with the
// definition of the fold written down as plainly as possible (fold.go), and which
// records count, from what the register says of their epochs (intervals.go).
//
// The first part has two regions that lose nothing and never meet a fence. The
// second has two regions and a witness, one register over all three, an idempotency
// secret and a residency policy: one region is fenced under load while it answers,
// while it is stopped, and while it hears nothing of the register, and each time
// let go again; and everything outside it is searched for canaries of records that
// must not leave it (leak.go). For that search the gateways of the second part run
// with a flag that no help text shows, --uncompressed: they compress no batch, so
// that bytes are found wherever they are. The product has nothing else that
// compresses what it stores or sends, but for the register's servers, which
// compress single messages above 8 KiB between each other; a record of the register
// holds names and offsets.
//
// Usage:
//
//	go run ./testbench/accept -kafka embedded|apache [-part 1|2] [-geogate BIN] [-data DIR]
//
// The data are the whole files in GEOGATE_DATA or -data, else the excerpts of
// testbench/data. Exit code 1 means that a check failed; its evidence is
// printed and the work directory is kept.
package main
