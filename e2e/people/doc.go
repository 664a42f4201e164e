// Package people tests the sign-in of people: the built colony as CO and as command line, with a real OpenID
// provider and a browser that the test plays. It has tests alone.
package people
