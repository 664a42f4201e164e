// Package descriptors says how many files and connections the process may have open.
package descriptors
