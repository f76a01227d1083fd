// Package docs holds tests only: what the documentation says is true. Its
// examples run against a demo, its tables agree with the code, its links and the
// names that it uses exist.
package docs
