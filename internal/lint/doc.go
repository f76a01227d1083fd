// Package lint holds tests only: rules about the whole source tree that the
// compiler does not know. Who may import whom, which packages may know an
// outside technology, where fx may be, and that every package says what it is.
//
// The tests parse the tree themselves instead of asking the go command: what a
// child process reads is no input of the test cache, and a broken rule would
// show as a cached success.
package lint
