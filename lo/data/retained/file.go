package retained

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"github.com/colonyfleet/colony/internal/atomicfile"
	"github.com/colonyfleet/colony/protocol"
)

// magic opens the file; its number is the version of the format.
const magic = "colony messages 1\n"

const frameHeader = 8

// castagnoli is the table of CRC-32C.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func appendFrame(to, body []byte) []byte {
	to = binary.LittleEndian.AppendUint32(to, uint32(len(body)))
	to = binary.LittleEndian.AppendUint32(to, crc32.Checksum(body, castagnoli()))
	return append(to, body...)
}

// load reads the file, or begins a new one. What cannot be read is given up: the
// records before and behind it stay, as far as their places are known.
func (s *Store) load() error {
	b, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		s.lost = true
		return s.rewrite()
	}
	if err != nil {
		return err
	}
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return fmt.Errorf("not a store of messages of this version: move it away, and what is retained is learnt anew from those who publish it")
	}
	at, damaged := len(magic), 0
	for len(b)-at >= frameHeader {
		n := int(binary.LittleEndian.Uint32(b[at:]))
		if n == 0 || n > protocol.MaxMessage || n > len(b)-at-frameHeader {
			break
		}
		body := b[at+frameHeader : at+frameHeader+n]
		var m Message
		if crc32.Checksum(body, castagnoli()) != binary.LittleEndian.Uint32(b[at+4:]) || protocol.Unmarshal(body, &m) != nil {
			damaged++
		} else {
			s.written++
			s.apply(m, int64(n), s.written)
		}
		at += frameHeader + n
	}
	if damaged > 0 || at < len(b) {
		s.opts.Logger.Warn("store of messages was not whole", "path", s.path, "damaged_records", damaged, "cut_bytes", len(b)-at)
		s.lost = true
		return s.rewrite()
	}
	if s.file, err = os.OpenFile(s.path, os.O_RDWR, filePerm); err != nil {
		return err
	}
	s.size, s.synced = int64(at), s.written
	return nil
}

// tidy rewrites the file where it is broken, or mostly history.
func (s *Store) tidy() error {
	s.mu.Lock()
	due := s.file != nil && (s.broken || s.size > slack+2*(s.bytes+frameHeader*int64(len(s.topics))))
	s.mu.Unlock()
	if !due {
		return nil
	}
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil || !s.broken && s.size <= slack+2*(s.bytes+frameHeader*int64(len(s.topics))) {
		return nil // another one was faster
	}
	if err := s.rewrite(); err != nil {
		if !s.broken {
			s.opts.Logger.Warn("history of stored messages is kept for now", "path", s.path, "err", err)
			return nil
		}
		return protocol.Errorf(protocol.Unavailable, "rewrite store of messages: %w", err)
	}
	return nil
}

// rewrite replaces the file by one without history. The caller holds both locks,
// or is Open.
func (s *Store) rewrite() error {
	now := s.opts.Now()
	content := []byte(magic)
	for topic, e := range s.topics {
		if _, ok := e.message.ExpiresIn(now); !ok {
			s.bytes -= e.size
			delete(s.topics, topic)
			continue
		}
		content = appendFrame(content, protocol.Marshal(&e.message))
	}
	if err := atomicfile.Write(s.path, content, filePerm); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_RDWR, filePerm)
	if err != nil {
		s.broken = true // the open file is not the one that a restart finds
		return err
	}
	if s.file != nil {
		err = s.file.Close()
	}
	s.file, s.size, s.synced, s.broken = f, int64(len(content)), s.written, false
	if err != nil {
		s.opts.Logger.Warn("close old store of messages", "err", err)
	}
	return nil
}
