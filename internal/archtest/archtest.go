// Package archtest holds the rules of this repository that a compiler does not
// check: the layers, the size budgets, a comment for each package, references
// in the documentation that cannot rot. Its tests are the law; it has no other code.
package archtest
