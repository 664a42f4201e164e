// Package paging cuts the lists of a registry into parts, as the distribution specification of OCI
// has it: the parameters n and last, and the header Link.
package paging

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
)

// ErrNumber is the error of a parameter n that is no number of entries.
var ErrNumber = errors.New("n is not a number")

// Cut returns the part of a sorted list that the request for u asks for: what follows the entry last,
// and n entries of it at most. link is the value of the header Link that leads to the next part; "": there
// is none.
func Cut(u *url.URL, all []string) (part []string, link string, err error) {
	q := u.Query()
	if last := q.Get("last"); last != "" {
		at, found := slices.BinarySearch(all, last)
		if found {
			at++
		}
		all = all[at:]
	}
	if !q.Has("n") {
		return all, "", nil
	}
	n, err := strconv.Atoi(q.Get("n"))
	if err != nil || n < 0 {
		return nil, "", ErrNumber
	}
	if n >= len(all) || n == 0 {
		return all[:min(n, len(all))], "", nil
	}
	next := url.Values{"n": {strconv.Itoa(n)}, "last": {all[n-1]}}
	return all[:n], fmt.Sprintf("<%s?%s>; rel=\"next\"", u.Path, next.Encode()), nil
}
