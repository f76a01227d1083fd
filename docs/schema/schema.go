// Package schema holds the JSON Schemas of the files that people write, so that
// the program can print them and editors can use them by their path.
package schema

import _ "embed" // the schemas are files that others read too

//go:embed config-v1.json
var config string

//go:embed ownership-v1.json
var ownership string

//go:embed residency-v1.json
var residency string

//go:embed witness-v1.json
var witness string

// Witness is the schema of the configuration of a witness, version 1.
func Witness() []byte { return []byte(witness) }

// Config is the schema of the configuration of one instance, version 1.
func Config() []byte { return []byte(config) }

// Ownership is the schema of an ownership policy, version 1.
func Ownership() []byte { return []byte(ownership) }

// Residency is the schema of a residency policy, version 1.
func Residency() []byte { return []byte(residency) }
