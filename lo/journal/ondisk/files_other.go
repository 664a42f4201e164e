//go:build !linux

package ondisk

import "os"

// Datasync makes what was written to f durable.
func Datasync(f *os.File) error { return f.Sync() }
