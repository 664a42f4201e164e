// Package hostclock says whether something keeps the machine's clock in step with others,
// such as NTP.
package hostclock

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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

// SinceBoot returns the time since the machine was started, also while it slept: CLOCK_BOOTTIME, which cannot be set. The times
// of two machines, or of two boots, cannot be compared.
func SinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // every kernel since 2.6.39 has it
	}
	return time.Duration(t.Nano())
}

// Boot names the boot of the machine that SinceBoot counts from; "" where the kernel does not say.
func Boot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Elapsed returns the clock for durations that include the sleep of the machine. It is given, unless that is nil: then SinceBoot,
// or package time where the times of day are not those of the machine's clock.
func Elapsed(given func() time.Duration, otherClock bool) func() time.Duration {
	if given != nil {
		return given
	}
	if !otherClock {
		return SinceBoot
	}
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}
