// Package kept holds later versions to what an earlier one has left behind.
//
// testbench/data/kept has the data directories and configuration of a deployment of
// two regions and a witness, as commit e4aa663 left them: region us stopped cleanly,
// region eu killed in the middle of a transaction. Beside them lies golden.txt, what
// e4aa663 itself read from a copy of them, and held.json, what clients of that time
// hold: answers with their idempotency keys, tokens and cursors.
//
// The test starts the present code on a copy, compares what it reads with the golden
// file section by section, and goes on: retries, writes, a fence. A change of a format
// must keep it green. When it fails, the message names the section and the document of
// the format whose reader failed.
//
// The program in make wrote all of it; the README beside the data says how.
package kept
