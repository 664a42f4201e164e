// Package v1rc3 holds the documents of the Margo specification, release 1.0.0-rc.3, as Colony reads
// and writes them: the ApplicationDescription (margo.yaml), the ApplicationDeployment, the
// DeviceCapabilitiesManifest, and the evaluation of deviceConstraints.
//
// Reading is strict, because a key that is ignored is a mistake found at a machine instead of at a
// desk: unknown and duplicate keys, wrong types and unreplaced placeholders are refused. A reader
// collects every problem of a document, each with its path and line, and returns them as Problems.
//
// The package does no I/O, starts no goroutine and keeps no state. Its values may be read
// concurrently.
package v1rc3
