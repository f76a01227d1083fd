// Package strict decodes YAML files that people write by hand and that must not
// be misread: configuration, ownership and residency policies.
//
// Ordinary YAML decoding forgives. A misspelt key is dropped, a second value of
// a key wins, an alias multiplies what one reads, a second document vanishes.
// For a file that says where data may go each of these is a leak or an outage,
// so here every one of them is an error, and all errors of a file are reported
// together, ordered by position, each with file, line, column and, where a name
// is close to a known one, a suggestion.
//
// The subset of YAML 1.2 that is accepted: one document, block and flow
// collections, plain, quoted and block scalars, comments. Refused: anchors,
// aliases, merge keys, tags, directives, duplicate keys, keys that are not text,
// files over [MaxBytes] and nesting over [MaxDepth].
//
// Checks that need more than the shape of the file (a region that does not
// exist, two equal ids) are made on the decoded value, which knows paths but no
// lines. They collect [Problems], and [Document.Locate] turns these into errors
// with positions of the same form.
package strict
