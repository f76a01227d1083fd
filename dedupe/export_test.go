package dedupe

// Choose gives tests the rule behind Find.
var Choose = chooseCopy
