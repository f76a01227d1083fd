// Package rounds says how often a test repeats what it does: a few times in make test,
// which must stay quick, and as often as it can find anything in make soak. A test must
// mean the same with both numbers, and fail with the small one, too, when what it shows
// is broken.
package rounds

import "os"

// Variable is the environment variable that asks for all rounds, with the value "all".
const Variable = "GEOGATE_TEST_ROUNDS"

// Of is few, or all where GEOGATE_TEST_ROUNDS=all asks for it. They may be anything that a
// test takes more of when it has the time.
func Of[T any](few, all T) T {
	if os.Getenv(Variable) == "all" {
		return all
	}
	return few
}
