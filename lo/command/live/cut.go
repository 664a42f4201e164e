package live

import "github.com/colonyfleet/colony/protocol/command"

// cut returns a piece of a frame whose data is at most room bytes, between two of its items, and the rest; nil: there is none. A single item
// that is larger goes alone, and so does what cannot be read.
func cut(f frame, room int) (piece command.Frame, rest *frame) {
	if len(f.Data) <= room {
		return f.Frame, nil
	}
	end, count := 0, uint64(0)
	for end < len(f.Data) {
		n := command.FirstItem(f.Data[end:])
		if n == 0 {
			return f.Frame, nil
		}
		if end > 0 && end+n > room {
			break
		}
		end += n
		count++
	}
	if end >= len(f.Data) || count > f.Items {
		return f.Frame, nil
	}
	piece = command.Frame{Items: count, Data: f.Data[:end], LostItems: f.LostItems, LostBytes: f.LostBytes}
	r := frame{f.node, f.Frame}
	r.Items, r.Data, r.LostItems, r.LostBytes = f.Items-count, f.Data[end:], 0, 0
	if f.TotalBytes > 0 { // up to and with the piece alone
		piece.TotalItems, piece.TotalBytes = f.TotalItems-min(r.Items, f.TotalItems), f.TotalBytes-min(uint64(len(r.Data)), f.TotalBytes)
	}
	return piece, &r
}
