// Package ondisk is the format of a journal's files: the names in its directory, the
// frames of a segment and their checksums, a scanner that finds the next whole record
// behind damage, a rewriter, the trim mark and the epoch. It knows nothing of who reads
// or appends; package journal decides what is written when.
package ondisk
