package nameserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// penalty is how long a name server that did not answer is asked last.
const penalty = 30 * time.Second

// headerSize is the length of a message's header, in bytes.
const headerSize = 12

// upstreams are the name servers that questions are passed on to.
type upstreams struct {
	timeout time.Duration
	buffers *sync.Pool // *[]byte, of 64 KiB

	mu     *sync.Mutex // protects list and silent
	list   []netip.AddrPort
	silent map[netip.AddrPort]time.Time // when each did not answer last
}

func newUpstreams(timeout time.Duration) upstreams {
	return upstreams{
		timeout: timeout, mu: new(sync.Mutex), silent: map[netip.AddrPort]time.Time{},
		buffers: &sync.Pool{New: func() any { b := make([]byte, 1<<16); return &b }},
	}
}

func (u *upstreams) set(list []netip.AddrPort) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !slices.Equal(u.list, list) {
		u.list, u.silent = slices.Clone(list), map[netip.AddrPort]time.Time{}
	}
}

// ordered returns whom to ask: those that did not answer lately come last.
func (u *upstreams) ordered(own []netip.AddrPort) []netip.AddrPort {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := own
	if list == nil {
		list = u.list
	}
	late := func(a netip.AddrPort) int {
		if at, ok := u.silent[a]; ok && time.Since(at) < penalty {
			return 1
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b netip.AddrPort) int { return late(a) - late(b) })
}

func (u *upstreams) note(a netip.AddrPort, answered bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if answered {
		delete(u.silent, a)
	} else if len(u.silent) < 1000 { // more than that are not asked within a penalty
		u.silent[a] = time.Now()
	}
}

// ask passes a question on, to one name server after another until one knows an answer.
// Own replaces those of the machine. An answer by UDP that was cut off goes to the asker
// as it is, which then asks by TCP; so does this.
func (u *upstreams) ask(ctx context.Context, network string, question []byte, own []netip.AddrPort) ([]byte, error) {
	list := u.ordered(own)
	if len(list) == 0 {
		return nil, errors.New("the machine has no name server")
	}
	var unsure []byte // an answer that says that the server failed, or does not want to
	var errs []error
	for _, to := range list {
		answer, err := u.exchange(ctx, network, to, question)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		u.note(to, err == nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("ask %s: %w", to, err))
			continue
		}
		switch dnsmessage.RCode(answer[3] & 0xf) {
		case dnsmessage.RCodeServerFailure, dnsmessage.RCodeRefused:
			unsure = answer
		default:
			return answer, nil
		}
	}
	if unsure != nil {
		return unsure, nil
	}
	return nil, errors.Join(errs...)
}

// exchange asks one name server. The question goes out under an unpredictable id and from an
// unpredictable port.
func (u *upstreams) exchange(ctx context.Context, network string, to netip.AddrPort, question []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	out := slices.Clone(question)
	id := uint16(rand.Uint32())
	binary.BigEndian.PutUint16(out, id)
	answer, err := u.roundTrip(conn, network, out)
	if err != nil {
		return nil, err
	}
	copy(answer[:2], question[:2])
	return answer, nil
}

// roundTrip sends a question and reads until its answer comes.
func (u *upstreams) roundTrip(conn net.Conn, network string, question []byte) ([]byte, error) {
	if network == "tcp" {
		if err := writeTCP(conn, question); err != nil {
			return nil, err
		}
		answer, err := readTCP(conn, 1<<16)
		if err == nil && !answers(answer, question) {
			err = errors.New("the answer is to another question")
		}
		return answer, err
	}
	if _, err := conn.Write(question); err != nil {
		return nil, err
	}
	buf := u.buffers.Get().(*[]byte)
	defer u.buffers.Put(buf)
	for {
		n, err := conn.Read(*buf)
		if err != nil {
			return nil, err
		}
		if answers((*buf)[:n], question) {
			return slices.Clone((*buf)[:n]), nil
		}
	}
}

// answers reports whether a message is the answer to a question: its id and, where it
// repeats the question, its name and type.
func answers(answer, question []byte) bool {
	if len(answer) < headerSize || answer[2]&0x80 == 0 || !bytes.Equal(answer[:2], question[:2]) {
		return false
	}
	if binary.BigEndian.Uint16(answer[4:6]) == 0 {
		return true // an error that repeats nothing
	}
	var asked, answered dnsmessage.Parser
	if _, err := asked.Start(question); err != nil {
		return false
	}
	if _, err := answered.Start(answer); err != nil {
		return false
	}
	want, err := asked.Question()
	if err != nil {
		return false
	}
	got, err := answered.Question()
	return err == nil && got.Type == want.Type && got.Class == want.Class && bytes.EqualFold(got.Name.Data[:got.Name.Length], want.Name.Data[:want.Name.Length])
}
