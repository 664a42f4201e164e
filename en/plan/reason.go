package plan

import "fmt"

// why says what is known of the last exit, the last line that the container wrote
// included.
func (u *unit) why() string {
	text := said(u.counted.Message)
	if !u.counted.OutOfMemory {
		return text
	}
	if limit := u.spec.Limits.MemoryBytes; limit > 0 {
		return fmt.Sprintf(": the kernel killed it, because it used up its memory limit of %s%s", size(limit), text)
	}
	return ": the kernel killed it, because the node was out of memory" + text
}

// size writes bytes in the largest unit that leaves a whole number.
func size(bytes uint64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB"}
	i := 0
	for ; i < len(units)-1 && bytes%1024 == 0 && bytes > 0; i++ {
		bytes /= 1024
	}
	return fmt.Sprintf("%d %s", bytes, units[i])
}

func said(message string) string {
	if message == "" {
		return ""
	}
	return ": " + message
}
