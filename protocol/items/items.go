// Package items counts what an encoded message holds before it is decoded, so that its decoding is
// bounded: a single byte on the wire may become a structure of up to a kilobyte in memory.
package items

import "encoding/binary"

// Count returns how many maps and elements of arrays b has, as far as it is well-formed and no deeper
// than levels. It scans the items in their order, without recursion (RFC 8949, section 3). A null
// counts too: in the place of a structure it becomes an empty one.
func Count(b []byte, levels int) (n int) {
	const text, array, mapping, tag = 3, 4, 5, 6 // major types; below text are integers and bytes
	type level struct {
		left  uint64 // items that are still to come
		array bool
	}
	var open []level
	for len(b) > 0 {
		major, argument, size := head(b)
		if size == 0 {
			return n
		}
		b = b[size:]
		if major == tag {
			continue // its content stands in its place
		}
		element := false
		if at := len(open) - 1; at >= 0 {
			element = open[at].array
			open[at].left--
		}
		if element || major == mapping {
			n++
		}
		switch major {
		case text - 1, text, array, mapping:
			if argument > uint64(len(b)) { // an item takes a byte at least
				return n
			}
		}
		switch major {
		case text - 1, text:
			b = b[argument:]
		case array:
			open = append(open, level{argument, true})
		case mapping:
			open = append(open, level{2 * argument, false})
		}
		for len(open) > 0 && open[len(open)-1].left == 0 {
			open = open[:len(open)-1]
		}
		if len(open) > levels {
			return n
		}
	}
	return n
}

// head reads the head of an item, of a definite length: its major type, its argument, and how many bytes it has; 0 where b does not begin with one.
func head(b []byte) (major byte, argument uint64, size int) {
	if len(b) == 0 {
		return 0, 0, 0
	}
	major, argument = b[0]>>5, uint64(b[0]&0x1f)
	if argument < 24 {
		return major, argument, 1
	}
	if argument > 27 {
		return 0, 0, 0
	}
	size = 1 + 1<<(argument-24)
	if len(b) < size {
		return 0, 0, 0
	}
	argument = 0
	for _, c := range b[1:size] {
		argument = argument<<8 | uint64(c)
	}
	return major, argument, size
}

// ArrayHead is how many bytes Array adds.
const ArrayHead = 5

// Array returns the n items of a CBOR sequence as an array, whose head has a length of 32 bits (RFC 8949, section 3): a decoder reads exactly as many.
func Array(n uint32, sequence []byte) []byte {
	const arrayOf32 = 4<<5 | 26
	array := make([]byte, ArrayHead, ArrayHead+len(sequence))
	array[0] = arrayOf32
	binary.BigEndian.PutUint32(array[1:], n)
	return append(array, sequence...)
}

// First returns the length of the first item of a CBOR sequence (RFC 8742), in bytes; 0 where it does not begin with a whole one of
// definite length, no deeper than levels.
func First(b []byte, levels int) int {
	const text, array, mapping, tag, simple = 3, 4, 5, 6, 7
	at, left := 0, []uint64{1} // items that are still to come, by depth
	for len(left) > 0 {
		if left[len(left)-1] == 0 {
			left = left[:len(left)-1]
			continue
		}
		left[len(left)-1]--
		if at >= len(b) || len(left) > levels {
			return 0
		}
		major, argument, size := head(b[at:])
		if size == 0 {
			return 0
		}
		at += size
		if major >= text-1 && major <= mapping && argument > uint64(len(b)-at) { // an item takes a byte at least
			return 0
		}
		switch major {
		case text - 1, text:
			at += int(argument)
		case array:
			left = append(left, argument)
		case mapping:
			left = append(left, 2*argument)
		case tag:
			left = append(left, 1)
		case simple:
		}
	}
	return at
}
