package sign

import (
	"crypto/ed25519"
	"crypto/sha256"
)

// Signatures are those of the last message of one site, which are used again for what the next
// one has in common with it. They take some 200 bytes for each part of that message. The zero
// value has none. One goroutine uses them at a time.
type Signatures struct {
	public ed25519.PublicKey // by which they are
	parts  map[[sha256.Size]byte][]byte
}

// A reuser makes the signatures of one message.
type reuser struct {
	before, next map[[sha256.Size]byte][]byte
}

// reuse begins a message that is signed by a key. Signatures of another key do not count.
func (k *Signatures) reuse(public ed25519.PublicKey) *reuser {
	r := &reuser{next: map[[sha256.Size]byte][]byte{}}
	if k != nil && k.public.Equal(public) {
		r.before = k.parts
	}
	return r
}

// keep ends it: what the message does not have is forgotten.
func (k *Signatures) keep(public ed25519.PublicKey, r *reuser) {
	if k != nil {
		k.public, k.parts = public, r.next
	}
}

// signature returns the signature of a payload that was made before, or makes it by sign.
func (r *reuser) signature(kind Kind, payload []byte, sign func(Kind, []byte) ([]byte, error)) ([]byte, error) {
	id := sha256.Sum256(append([]byte(string(kind)+"\x00"), payload...))
	signature, ok := r.before[id]
	if !ok {
		var err error
		if signature, err = sign(kind, payload); err != nil {
			return nil, err
		}
	}
	r.next[id] = signature
	return signature, nil
}
