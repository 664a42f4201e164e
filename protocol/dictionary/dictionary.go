// Package dictionary is Compression Dictionary Transport (RFC 9842) for what sites fetch from the CO. A client names content that it has by its SHA-256, and
// the server answers with the difference to the new content: a Zstandard frame (RFC 8878) that was compressed with the old content as its dictionary. So a
// change of one deployment of a hundred costs the link a few hundred bytes. The receiver restores the whole content and verifies it by its digest, as it does
// without a dictionary.
//
// The package is pure; its functions may be called concurrently.
package dictionary

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/colonyfleet/colony/protocol"
)

const (
	// Coding is the content coding "Dictionary-Compressed Zstandard" (RFC 9842, section 5).
	Coding = "dcz"
	// header names, in a request, the content that the client has (RFC 9842, section 2.2).
	header = "Available-Dictionary"
	// Vary lists what an answer depends on.
	Vary = "Accept-Encoding, Available-Dictionary"
	// Limit bounds a dictionary, in bytes.
	Limit = protocol.MaxMessage
	// maxDecoded bounds the window and the content of a body, in bytes: a server may use a window of up to 8 MB for content of any size (RFC 9842, section 5).
	maxDecoded = 16 << 20
	// fewBytes is up to where a dictionary takes the fast way, in bytes.
	fewBytes = 128 << 10
)

// magic opens a body of this coding: the head of a skippable frame of 32 bytes, which hold the SHA-256 of the dictionary (RFC 9842, section 5).
var magic = []byte{0x5e, 0x2a, 0x4d, 0x18, 0x20, 0, 0, 0}

// Offer asks in a request for the difference to content that the client has. Without a difference the answer is as it would be without the offer.
func Offer(h http.Header, digest protocol.Digest) {
	sum, err := digest.Sum()
	if err != nil {
		return // not a digest: nothing that could be named
	}
	h.Set(header, ":"+base64.StdEncoding.EncodeToString(sum)+":")
	h.Set("Accept-Encoding", Coding)
}

// Offered returns the digest of what the client of a request has; ok is false where it names nothing, or does not accept the coding.
func Offered(h http.Header) (digest protocol.Digest, ok bool) {
	accepted := false
	for coding := range strings.SplitSeq(h.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(coding), ";")
		accepted = accepted || strings.EqualFold(strings.TrimSpace(name), Coding) && strings.ReplaceAll(weight, " ", "") != "q=0"
	}
	text, opened := strings.CutPrefix(strings.TrimSpace(h.Get(header)), ":") // a byte sequence (RFC 8941, section 3.3.5)
	text, closed := strings.CutSuffix(text, ":")
	sum, err := base64.StdEncoding.DecodeString(text)
	if !accepted || !opened || !closed || err != nil || len(sum) != sha256.Size {
		return "", false
	}
	return protocol.DigestOfSum([sha256.Size]byte(sum)), true
}

// Encode returns content as what is other in it than in a dictionary. The same input has the same output. It is nil where the dictionary is larger than Limit, or
// where the result would not be smaller than the content.
func Encode(content, dictionary []byte) []byte {
	if len(dictionary) == 0 || len(dictionary) > Limit {
		return nil
	}
	// The window reaches over both, so that each byte of the dictionary can be referred to.
	window := zstd.MinWindowSize
	for window < len(content)+len(dictionary) {
		window <<= 1
	}
	level := zstd.SpeedFastest
	if len(dictionary) > fewBytes {
		level = zstd.SpeedBetterCompression // the tables of the other are too small to find all of it
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(window),
		zstd.WithEncoderLevel(level), zstd.WithEncoderDictRaw(0, dictionary), zstd.WithEncoderCRC(false))
	if err != nil {
		panic(err) // the options are within their bounds
	}
	sum := sha256.Sum256(dictionary)
	out := z.EncodeAll(content, append(bytes.Clone(magic), sum[:]...))
	if len(out) >= len(content) {
		return nil
	}
	return out
}

// Decode returns the content of an encoded body, at most limit bytes. It fails with kind Invalid where the body is none of this coding, was made with
// another dictionary, or is larger.
func Decode(body, dictionary []byte, limit uint64) ([]byte, error) {
	frame, ok := bytes.CutPrefix(body, magic)
	sum := sha256.Sum256(dictionary)
	if ok {
		frame, ok = bytes.CutPrefix(frame, sum[:])
	}
	if !ok {
		return nil, protocol.Errorf(protocol.Invalid, "the difference that was sent is not one to what is here")
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxDecoded), zstd.WithDecoderDictRaw(0, dictionary))
	if err != nil {
		panic(err) // the options are within their bounds
	}
	defer z.Close()
	content, err := z.DecodeAll(frame, nil)
	if err != nil {
		return nil, protocol.Errorf(protocol.Invalid, "decompress the difference that was sent: %w", err)
	}
	if uint64(len(content)) > limit {
		return nil, protocol.Errorf(protocol.Invalid, "the difference that was sent makes %d bytes: %d were announced", len(content), limit)
	}
	return content, nil
}
