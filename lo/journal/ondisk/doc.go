// Package ondisk is the format of a journal's files: the names in its directory, the frames of a
// segment and their checksums, a scanner that finds the next whole record behind damage, a
// rewriter, the trim mark and the epoch. It does not know the readers and writers; package journal
// decides what is written when.
package ondisk
