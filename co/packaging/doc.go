// Package packaging makes a Margo package out of a vendor's Compose file: margo.yaml with
// a parameter for each variable, the files that the Compose file names, and a list of what
// could not be taken over. It reads the folder of the file and writes a new one.
package packaging
