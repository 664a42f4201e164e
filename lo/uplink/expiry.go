package uplink

import (
	"encoding/binary"

	"github.com/colonyfleet/colony/protocol"
)

// expiredBody is what an event reads as whose time is up.
var expiredBody = protocol.Marshal(protocol.Event{Kind: protocol.DataExpired})

// The keys of protocol.Event and protocol.DataMessage that glance looks for.
const (
	eventMillis = 2
	eventKind   = 3
	eventBody   = 5

	messageRetain = 4
	messageExpiry = 5
)

// glimpse is what the uplink must know of an event.
type glimpse struct {
	millis int64 // its time
	kind   []byte
	expiry uint64 // of a message of machine data, in milliseconds; 0: none
	retain bool   // it is valid until another replaces it
}

// expired reports that the time of a message is up at now, where it is valid for
// maxAge milliseconds at most, unless that is 0. A retained one has its own time
// only: a list of what is retained brings what came long ago.
func (g *glimpse) expired(now int64, maxAge uint64) bool {
	life := g.expiry
	if maxAge > 0 && !g.retain && (life == 0 || maxAge < life) {
		life = maxAge
	}
	return life > 0 && string(g.kind) == string(protocol.DataEvent) && now > g.millis && uint64(now-g.millis) >= life
}

// glance looks into an encoded event without decoding it whole, because it is
// done for each one that is sent. It returns false for what it cannot read, which
// the receiver can judge better.
func glance(body []byte) (g glimpse, ok bool) {
	ok = pairs(body, func(key uint64, value []byte) {
		switch kind, n, rest, _ := head(value); key {
		case eventMillis:
			if kind == 0 {
				g.millis = int64(n)
			}
		case eventKind:
			if kind == 3 && uint64(len(rest)) >= n {
				g.kind = rest[:n]
			}
		case eventBody:
			if string(g.kind) == string(protocol.DataEvent) {
				g.expiry, g.retain = message(value)
			}
		}
	})
	return g, ok
}

// message looks into an encoded message of machine data.
func message(b []byte) (expiry uint64, retain bool) {
	pairs(b, func(key uint64, value []byte) {
		switch kind, n, _, _ := head(value); {
		case key == messageExpiry && kind == 0:
			expiry = n
		case key == messageRetain:
			retain = kind == 7 && n == 21 // true
		}
	})
	return expiry, retain
}

// pairs calls do for each pair of a CBOR map (RFC 8949) with small keys, in the
// order of the encoding, which is that of the keys. value begins with the value.
func pairs(b []byte, do func(key uint64, value []byte)) bool {
	kind, n, b, ok := head(b)
	if !ok || kind != 5 {
		return false
	}
	for range n {
		var key uint64
		if kind, key, b, ok = head(b); !ok || kind != 0 {
			return false
		}
		do(key, b)
		if b, ok = skip(b, 8); !ok {
			return false
		}
	}
	return true
}

// head reads the head of a data item: its major type and argument.
func head(b []byte) (kind byte, n uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, 0, nil, false
	}
	kind, info := b[0]>>5, b[0]&31
	b = b[1:]
	switch {
	case info < 24:
		return kind, uint64(info), b, true
	case info == 24 && len(b) >= 1:
		return kind, uint64(b[0]), b[1:], true
	case info == 25 && len(b) >= 2:
		return kind, uint64(binary.BigEndian.Uint16(b)), b[2:], true
	case info == 26 && len(b) >= 4:
		return kind, uint64(binary.BigEndian.Uint32(b)), b[4:], true
	case info == 27 && len(b) >= 8:
		return kind, binary.BigEndian.Uint64(b), b[8:], true
	}
	return 0, 0, nil, false
}

// skip returns what follows the first data item of b, which may hold others up to
// a depth.
func skip(b []byte, depth int) (rest []byte, ok bool) {
	kind, n, b, ok := head(b)
	if !ok || depth == 0 {
		return nil, false
	}
	switch kind {
	case 2, 3: // bytes and text
		if uint64(len(b)) < n {
			return nil, false
		}
		return b[n:], true
	case 4, 5, 6: // array, map and tag
		items := n
		if kind == 5 {
			items *= 2
		} else if kind == 6 {
			items = 1
		}
		for range items {
			if b, ok = skip(b, depth-1); !ok {
				return nil, false
			}
		}
	}
	return b, true
}
