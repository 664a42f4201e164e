// Package people plays people who sign in: the built colony as CO and as what a person types, with a real OpenID
// provider and a browser that the test plays. It has tests alone.
package people
