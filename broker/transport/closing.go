package transport

// A closing is how far a connection has ended.
type closing struct {
	closed bool   // no more reads and writes
	broken bool   // the transport is closed, and nothing more is said
	over   bool   // the transport is closed, for whichever reason
	after  func() // called then; nil: nothing is
}

// AfterClose has f called once, when the transport is closed, which after Close takes a moment in which the client may read our last words; at once where it
// is. f is called with locks held: it returns at once and calls nothing of this package.
func (c *Conn) AfterClose(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		f()
		return
	}
	c.after = f
}

// overLocked says that the transport is closed. c.mu is held.
func (c *Conn) overLocked() {
	if c.over {
		return
	}
	if c.over = true; c.after != nil {
		c.after()
	}
}
