package access

// BadCredentials is the error for a client that has not proved an account: Err, for the log. The client must read no more than Shown, as more
// would reveal which accounts exist.
type BadCredentials struct{ Err error }

// Error returns the text of Err.
func (b *BadCredentials) Error() string { return b.Err.Error() }

// Unwrap returns Err.
func (b *BadCredentials) Unwrap() error { return b.Err }

// Shown is what the client reads.
func (b *BadCredentials) Shown() string {
	return "wrong user name or password: the log of the broker says which, and what to do"
}
