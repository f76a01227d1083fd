package main

// mutants are deviations that break the protocol in rare histories, after
// simulations of the design.
var mutants = []mutant{}
