// Package hostclock says whether something keeps the machine's clock in step with others,
// such as NTP.
package hostclock

import "golang.org/x/sys/unix"

// Synchronised reports whether the kernel's clock is kept in step, as adjtimex(2) says: its
// status lacks STA_UNSYNC. It costs one system call.
func Synchronised() (bool, error) {
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		return false, err
	}
	return t.Status&unix.STA_UNSYNC == 0, nil
}

// Marks returns what says that times are to be marked, in the place of given: where that is
// nil, Unsynced, or never where the times are those of another clock than the machine's.
func Marks(given func() bool, otherClock bool) func() bool {
	switch {
	case given != nil:
		return given
	case otherClock:
		return func() bool { return false }
	default:
		return Unsynced
	}
}

// Unsynced reports whether times of the machine are to be marked: the kernel says that its
// clock is not synchronised. Where it says nothing they are not.
func Unsynced() bool {
	ok, err := Synchronised()
	return err == nil && !ok
}
