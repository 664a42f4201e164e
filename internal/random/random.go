// Package random is where names and jitter come from: from the machine, or in a test
// and a simulation from a seed, so that two runs draw the same.
package random

import (
	crypto "crypto/rand"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"sync"
)

// A Source draws. The nil Source is the machine's own, which is unpredictable. Any other follows
// from its seed and is for no secrets. Its methods may be called concurrently.
//
// What is drawn for one use does not depend on what is drawn for others, nor on the order in which
// goroutines with different uses come.
type Source struct {
	seed uint64

	mu    sync.Mutex
	drawn map[string]uint64 // by use
}

// Seeded returns a Source whose draws follow from seed.
func Seeded(seed uint64) *Source { return &Source{seed: seed, drawn: map[string]uint64{}} }

// textLength is that of crypto/rand.Text: 128 bits.
const textLength = 26

// Text returns a name that no other draw has, of 26 letters and digits (RFC 4648,
// section 6).
func (s *Source) Text(use string) string {
	if s == nil {
		return crypto.Text()
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	r := s.Rand(use)
	b := make([]byte, textLength)
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

// Fill fills b with bytes that no other draw has, if b has room for that.
func (s *Source) Fill(use string, b []byte) {
	if s == nil {
		_, _ = crypto.Read(b) // never fails, see its documentation
		return
	}
	r := s.Rand(use)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// Rand returns a generator for jitter, another one with each call. It is for one
// goroutine. That of the nil Source is nil, which retry takes for the process's own.
func (s *Source) Rand(use string) *rand.Rand {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	s.drawn[use]++
	n := s.drawn[use]
	s.mu.Unlock()
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64([]byte(use), n)) // a hash takes everything
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))               //nolint:gosec // chosen by the seed
}
