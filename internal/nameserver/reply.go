package nameserver

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// ttl is how long an asker may remember an address, in seconds: a container that is
	// replaced has another one at once.
	ttl = 5
	// maxUDP is the size of an answer that this server says it takes by UDP, the one that
	// no network splits.
	maxUDP = 1232
	// maxAnswers bounds the addresses of one answer, so that it fits into 512 bytes.
	maxAnswers = 16
)

// reply answers a question from the zone. Forward says that the name is none of the
// zone's. A nil answer without forward means: this is no question, say nothing.
func reply(question []byte, zone *Zone) (answer []byte, forward bool) {
	var p dnsmessage.Parser
	header, err := p.Start(question)
	if err != nil || header.Response {
		return nil, false
	}
	if header.OpCode != 0 {
		return refusal(header, dnsmessage.RCodeNotImplemented), false
	}
	q, err := p.Question()
	if err != nil {
		return refusal(header, dnsmessage.RCodeFormatError), false
	}
	if _, err := p.Question(); err == nil || p.SkipAllQuestions() != nil {
		return refusal(header, dnsmessage.RCodeFormatError), false
	}
	if q.Class != dnsmessage.ClassINET && q.Class != dnsmessage.ClassANY {
		return nil, true
	}
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if addr, ok := reversed(name); ok {
		pointer, known := zone.Pointers[addr]
		if !known {
			return nil, true
		}
		return records(header, q, hasEDNS(&p), nil, pointer), false
	}
	addrs, known := zone.Names[name]
	if !known {
		return nil, true
	}
	return records(header, q, hasEDNS(&p), addrs, ""), false
}

// hasEDNS reports whether a question has an OPT record: its answer must have one then,
// RFC 6891 section 6.1.1. The parser stands behind the questions.
func hasEDNS(p *dnsmessage.Parser) bool {
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return false
	}
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			return false
		}
		if h.Type == dnsmessage.TypeOPT {
			return true
		}
		if p.SkipAdditional() != nil {
			return false
		}
	}
}

// records builds the answer about a name that exists: the records of the type that was
// asked for, or none, which says that the name has no such records.
func records(query dnsmessage.Header, q dnsmessage.Question, edns bool, addrs []netip.Addr, pointer string) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
		ID: query.ID, Response: true, Authoritative: true, RecursionDesired: query.RecursionDesired, RecursionAvailable: true,
	})
	b.EnableCompression()
	err := b.StartQuestions()
	if err == nil {
		err = b.Question(q)
	}
	if err == nil {
		err = b.StartAnswers()
	}
	h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: ttl}
	for _, a := range addrs[:min(len(addrs), maxAnswers)] {
		switch {
		case err != nil:
		case a.Is4() && (q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeALL):
			err = b.AResource(h, dnsmessage.AResource{A: a.As4()})
		case a.Is6() && (q.Type == dnsmessage.TypeAAAA || q.Type == dnsmessage.TypeALL):
			err = b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: a.As16()})
		}
	}
	if err == nil && pointer != "" && (q.Type == dnsmessage.TypePTR || q.Type == dnsmessage.TypeALL) {
		var to dnsmessage.Name
		if to, err = dnsmessage.NewName(pointer + "."); err == nil {
			err = b.PTRResource(h, dnsmessage.PTRResource{PTR: to})
		}
	}
	if err == nil && edns {
		if err = b.StartAdditionals(); err == nil {
			var opt dnsmessage.ResourceHeader
			if err = opt.SetEDNS0(maxUDP, dnsmessage.RCodeSuccess, false); err == nil {
				err = b.OPTResource(opt, dnsmessage.OPTResource{})
			}
		}
	}
	if err != nil {
		return refusal(query, dnsmessage.RCodeServerFailure)
	}
	out, err := b.Finish()
	if err != nil {
		return refusal(query, dnsmessage.RCodeServerFailure)
	}
	return out
}

// refusal builds an answer that has a code alone.
func refusal(query dnsmessage.Header, code dnsmessage.RCode) []byte {
	out, err := (&dnsmessage.Message{Header: dnsmessage.Header{
		ID: query.ID, Response: true, OpCode: query.OpCode, RecursionDesired: query.RecursionDesired, RecursionAvailable: true, RCode: code,
	}}).Pack()
	if err != nil {
		return nil
	}
	return out
}

// serverFailure answers a question with SERVFAIL, the question repeated.
func serverFailure(question []byte) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(question)
	if err != nil {
		return nil
	}
	questions, err := p.AllQuestions()
	if err != nil {
		return refusal(header, dnsmessage.RCodeServerFailure)
	}
	out, err := (&dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true,
			RCode: dnsmessage.RCodeServerFailure,
		},
		Questions: questions,
	}).Pack()
	if err != nil {
		return nil
	}
	return out
}

// reversed reads the IPv4 address of a name below in-addr.arpa.
func reversed(name string) (netip.Addr, bool) {
	digits, ok := strings.CutSuffix(name, ".in-addr.arpa")
	parts := strings.Split(digits, ".")
	if !ok || len(parts) != 4 {
		return netip.Addr{}, false
	}
	var a [4]byte
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 8)
		if err != nil {
			return netip.Addr{}, false
		}
		a[3-i] = byte(n)
	}
	return netip.AddrFrom4(a), true
}
