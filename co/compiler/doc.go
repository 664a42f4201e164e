// Package compiler turns a Margo ApplicationDeployment into what nodes run: a
// protocol.DeploymentSpec with every parameter filled in and every image pinned
// by digest, and the protocol.SiteEntry that carries it. Nodes need no YAML.
//
// It is pure but for the Resolver, which fetches Compose archives and resolves
// images: an archive is read in memory and never unpacked to disk, and equal
// input gives equal bytes.
//
// Nothing in a compose.yaml is ignored in silence. Every key is held against the
// table of composefile, which docs/compose.md shows to users; a key that is not in it
// is refused by name, with its place.
package compiler
