// Command bench measures the built program. It starts two regions with everything
// on (idempotency keys, fold, merged topics, state, links, an ownership register of
// three servers), drives one of them, and prints rates beside those of a raw
// franz-go producer on the same broker in the same run, with the CPU time that a
// record costs each process. The program to measure is given by -geogate, so that an
// older one is measured by the same harness; -before measures a second one in turn.
//
// Suites (-work): write (streams, batches, single writes, reads of entities), fold
// (native events, and the merged topic read as a stream), start (stops and kills under
// load), idle (what a region costs that nobody uses), kills (a load while gateways are
// killed in turn, and a look for everything that was answered).
//
// The load generator shares the machine with what it measures. It sends bodies that
// were made before, over plain sockets, and looks at answers only as far as it must to
// count them: a few microseconds a record.
//
// docs/benchmarks.md has the method and the figures.
package main
