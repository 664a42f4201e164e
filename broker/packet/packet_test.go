package packet

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

var roomy = Limits{Filters: 100, Levels: 100, UserProperties: 100}

// code is the reason code of an error of this package; 0 for none, 1 for any other.
func code(err error) byte {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return 1
}

func TestReadHeader(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct {
		code   byte
		length int
		size   int
	}{
		"\xc0\x00":                 {0, 0, 2},
		"\x30\x7f":                 {0, 127, 2},
		"\x30\x80\x01":             {0, 128, 3},
		"\x30\xff\xff\xff\x7f":     {0, 268_435_455, 5},
		"\x30\xff\xff\xff\xff\x01": {0x81, 0, 0}, // five bytes. [MQTT-1.5.5-1]
		"\x30\x80\x00":             {0x81, 0, 0}, // not minimal. [MQTT-1.5.5-1]
		"\x30\xff\x80\x00":         {0x81, 0, 0},
		"\x00\x00":                 {0x81, 0, 0}, // type 0
		"\x36\x00":                 {0x81, 0, 0}, // QoS 3. [MQTT-3.3.1-4]
		"\x38\x00":                 {0x81, 0, 0}, // DUP with QoS 0. [MQTT-3.3.1-2]
		"\x3d\x00":                 {0, 0, 2},    // DUP, QoS 2, RETAIN
		"\x80\x00":                 {0x81, 0, 0}, // SUBSCRIBE without its flag. [MQTT-3.8.1-1]
		"\xa0\x00":                 {0x81, 0, 0}, // [MQTT-3.10.1-1]
		"\x60\x00":                 {0x81, 0, 0}, // [MQTT-3.6.1-1]
		"\xe1\x00":                 {0x81, 0, 0}, // [MQTT-3.14.1-1]
		"\x30\x80":                 {1, 0, 0},    // cut
		"":                         {1, 0, 0},
	} {
		h, err := ReadHeader(strings.NewReader(in))
		if code(err) != want.code || want.code == 0 && (h.Length != want.length || h.Size != want.size) {
			t.Errorf("%x: %+v, %v, want code 0x%02x, length %d, size %d", in, h, err, want.code, want.length, want.size)
		}
	}
}

// connect5 is a CONNECT of MQTT 5 with these flags, properties and what follows them.
func connect5(flags, props, rest string) string {
	return "\x00\x04MQTT\x05" + flags + "\x00\x3c" + string(rune(len(props))) + props + rest
}

func TestCheckConnect(t *testing.T) {
	t.Parallel()
	const id = "\x00\x01c"
	for name, c := range map[string]struct {
		body string
		code byte
	}{
		"plain":                           {connect5("\x02", "", id), 0},
		"3.1.1":                           {"\x00\x04MQTT\x04\x02\x00\x3c" + id, 0},
		"3.1":                             {"\x00\x06MQIsdp\x03\x02\x00\x3c" + id, 0},
		"version 6":                       {"\x00\x04MQTT\x06\x02\x00\x3c" + id, 0x84},
		"3.1's name with 4":               {"\x00\x06MQIsdp\x04\x02\x00\x3c" + id, 0x84},
		"HTTP":                            {"\x00\x04HTTP\x04\x02\x00\x3c" + id, 0x84},
		"trailing bytes":                  {connect5("\x02", "", id+"x"), 0x81},
		"no client id":                    {connect5("\x02", "", ""), 0x81},
		"reserved flag":                   {connect5("\x03", "", id), 0x81},
		"will QoS without will":           {connect5("\x0a", "", id), 0x81},
		"will retain without will":        {connect5("\x22", "", id), 0x81},
		"will QoS 3":                      {connect5("\x1e", "", id+"\x00\x00\x01t\x00\x00"), 0x81},
		"will":                            {connect5("\x0e", "", id+"\x00\x00\x01t\x00\x00"), 0},
		"will without its payload":        {connect5("\x0e", "", id+"\x00\x00\x01t"), 0x81},
		"will topic not UTF-8":            {connect5("\x0e", "", id+"\x00\x00\x01\xff\x00\x00"), 0x81},
		"will delay":                      {connect5("\x0e", "", id+"\x05\x18\x00\x00\x00\x01\x00\x01t\x00\x00"), 0},
		"will with a topic alias":         {connect5("\x0e", "", id+"\x03\x23\x00\x01\x00\x01t\x00\x00"), 0x81},
		"will payload format 2":           {connect5("\x0e", "", id+"\x02\x01\x02\x00\x01t\x00\x00"), 0x82},
		"user name":                       {connect5("\x82", "", id+"\x00\x01u"), 0},
		"user name not UTF-8":             {connect5("\x82", "", id+"\x00\x01\xff"), 0x81},
		"user name with NUL":              {connect5("\x82", "", id+"\x00\x01\x00"), 0x81},
		"client id not UTF-8":             {connect5("\x02", "", "\x00\x02\xc3\x28"), 0x81},
		"client id with a surrogate":      {connect5("\x02", "", "\x00\x03\xed\xa0\x80"), 0x81},
		"password alone, 5":               {connect5("\x42", "", id+"\x00\x00"), 0},
		"password alone, 3.1.1":           {"\x00\x04MQTT\x04\x42\x00\x3c" + id + "\x00\x00", 0x81},
		"receive maximum 0":               {connect5("\x02", "\x21\x00\x00", id), 0x82},
		"maximum packet size 0":           {connect5("\x02", "\x27\x00\x00\x00\x00", id), 0x82},
		"request problem information 2":   {connect5("\x02", "\x17\x02", id), 0x82},
		"session expiry":                  {connect5("\x02", "\x11\x00\x00\x00\x01", id), 0},
		"session expiry twice":            {connect5("\x02", "\x11\x00\x00\x00\x01\x11\x00\x00\x00\x01", id), 0x82},
		"user properties":                 {connect5("\x02", "\x26\x00\x01a\x00\x01b\x26\x00\x01a\x00\x01b", id), 0},
		"property of another packet":      {connect5("\x02", "\x23\x00\x01", id), 0x81},
		"unknown property":                {connect5("\x02", "\x7f\x00\x01", id), 0x81},
		"property past its length":        {"\x00\x04MQTT\x05\x02\x00\x3c\x03\x11\x00\x00\x00\x01" + id, 0x81},
		"string past the property length": {"\x00\x04MQTT\x05\x02\x00\x3c\x04\x26\x00\x01a\x00\x01b" + id, 0x81},
		"property length past the end":    {"\x00\x04MQTT\x05\x02\x00\x3c\x7f" + id, 0x81},
		"authentication data alone":       {connect5("\x02", "\x16\x00\x01x", id), 0x82},
		"authentication method":           {connect5("\x02", "\x15\x00\x01m\x16\x00\x01x", id), 0},
	} {
		if _, _, err := CheckConnect([]byte(c.body), roomy); code(err) != c.code {
			t.Errorf("%s: %v, want code 0x%02x", name, err, c.code)
		}
	}
	if v, _, err := CheckConnect([]byte(connect5("\x03", "", id)), roomy); v != 5 || err == nil {
		t.Errorf("version %d, %v, want 5 with an error", v, err)
	}
}

func TestCheckSubscribe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		v5   bool
		code byte
	}{
		"5":                              {"\x00\x01\x00\x00\x01t\x2e", true, 0},
		"3.1.1":                          {"\x00\x01\x00\x01t\x02", false, 0},
		"no options, 5":                  {"\x00\x01\x00\x00\x07line1/a", true, 0x81},
		"no options, 3.1.1":              {"\x00\x01\x00\x07line1/a", false, 0x81},
		"no filter":                      {"\x00\x01\x00", true, 0x82},
		"packet id 0":                    {"\x00\x00\x00\x00\x01t\x00", true, 0x82},
		"half a packet id":               {"\x00", true, 0x81},
		"QoS 3":                          {"\x00\x01\x00\x00\x01t\x03", true, 0x82},
		"QoS 3, 3.1.1":                   {"\x00\x01\x00\x01t\x03", false, 0x82},
		"reserved bits":                  {"\x00\x01\x00\x00\x01t\x40", true, 0x81},
		"reserved bits, 3.1.1":           {"\x00\x01\x00\x01t\x04", false, 0x81},
		"retain handling 3":              {"\x00\x01\x00\x00\x01t\x30", true, 0x82},
		"shared and no local":            {"\x00\x01\x00\x00\x0a$share/g/t\x04", true, 0x82},
		"subscription identifier":        {"\x00\x01\x02\x0b\x01\x00\x01t\x00", true, 0},
		"subscription identifier 0":      {"\x00\x01\x02\x0b\x00\x00\x01t\x00", true, 0x82},
		"two subscription identifiers":   {"\x00\x01\x04\x0b\x01\x0b\x02\x00\x01t\x00", true, 0x82},
		"identifier of five bytes":       {"\x00\x01\x06\x0b\xff\xff\xff\xff\x01\x00\x01t\x00", true, 0x81},
		"identifier that is not minimal": {"\x00\x01\x03\x0b\x81\x00\x00\x01t\x00", true, 0x81},
		"filter not UTF-8":               {"\x00\x01\x00\x00\x01\xff\x00", true, 0x81},
		"100 filters":                    {"\x00\x01\x00" + strings.Repeat("\x00\x01t\x00", 100), true, 0},
		"101 filters":                    {"\x00\x01\x00" + strings.Repeat("\x00\x01t\x00", 101), true, 0x97},
		"101 user properties":            {"\x00\x01\x81\x04" + strings.Repeat("\x26\x00\x00\x00\x00", 103)[:513] + "\x00\x01t\x00", true, 0x97},
	} {
		if err := CheckSubscribe([]byte(c.body), c.v5, roomy); code(err) != c.code {
			t.Errorf("%s: %v, want code 0x%02x", name, err, c.code)
		}
	}
	for body, want := range map[string]byte{
		"\x00\x01\x00\x00\x01t": 0, "\x00\x01\x00": 0x82, "\x00\x01\x00\x00\x02t": 0x81, "\x00\x00\x00\x00\x01t": 0x82,
		"\x00\x01\x03\x0b\x01\x00\x01t": 0x81, "\x00\x01\x00" + strings.Repeat("\x00\x01t", 101): 0x97,
	} {
		if err := CheckUnsubscribe([]byte(body), true, roomy); code(err) != want {
			t.Errorf("UNSUBSCRIBE %.20x: %v, want code 0x%02x", body, err, want)
		}
	}
}

func TestReadPublish(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags byte
		body  string
		code  byte
		props string // that are passed on
	}{
		"QoS 0":                          {0, "\x00\x01t\x00x", 0, ""},
		"QoS 1":                          {2, "\x00\x01t\x00\x01\x00x", 0, ""},
		"no payload":                     {0, "\x00\x01t\x00", 0, ""},
		"packet id 0":                    {2, "\x00\x01t\x00\x00\x00x", 0x82, ""},
		"no packet id":                   {2, "\x00\x01t", 0x81, ""},
		"no property length":             {0, "\x00\x01t", 0x81, ""},
		"wildcard":                       {0, "\x00\x03a/+\x00x", 0x82, ""},
		"topic not UTF-8":                {0, "\x00\x02\xff\xfe\x00x", 0x81, ""},
		"topic with NUL":                 {0, "\x00\x02a\x00\x00x", 0x81, ""},
		"100 levels":                     {0, "\x00\x63" + strings.Repeat("/", 99) + "\x00", 0, ""},
		"101 levels":                     {0, "\x00\x64" + strings.Repeat("/", 100) + "\x00", 0x90, ""},
		"no topic":                       {0, "\x00\x00\x00x", 0x82, ""},
		"alias":                          {0, "\x00\x00\x03\x23\x00\x07x", 0, ""},
		"alias twice":                    {0, "\x00\x01t\x06\x23\x00\x07\x23\x00\x07x", 0x82, ""},
		"payload format":                 {0, "\x00\x01t\x02\x01\x01x", 0, "\x01\x01"},
		"payload format 2":               {0, "\x00\x01t\x02\x01\x02x", 0x82, ""},
		"response topic":                 {0, "\x00\x01t\x04\x08\x00\x01rx", 0, "\x08\x00\x01r"},
		"response topic with a wildcard": {0, "\x00\x01t\x04\x08\x00\x01#x", 0x82, ""},
		"subscription identifier":        {0, "\x00\x01t\x02\x0b\x01x", 0x82, ""},
		"what stays here is taken out": {
			0, "\x00\x01t\x16" + "\x26\x00\x01a\x00\x01b" + "\x23\x00\x07" + "\x01\x01" + "\x02\x00\x00\x00\x09" + "\x03\x00\x02ct" + "x",
			0, "\x26\x00\x01a\x00\x01b\x01\x01\x03\x00\x02ct",
		},
	} {
		h := Header{Type: Publish, Flags: c.flags, Length: len(c.body)}
		p, err := ReadPublish(h, []byte(c.body), true, roomy)
		if code(err) != c.code {
			t.Errorf("%s: %v, want code 0x%02x", name, err, c.code)
		}
		if err == nil && string(p.Properties) != c.props {
			t.Errorf("%s: passes on %x, want %x", name, p.Properties, c.props)
		}
	}
}

// An expiry of 0 is not none. [MQTT 5, 3.3.2.3.3]
func TestReadExpiry(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]Publication{
		"\x00\x01t\x00x":                     {},
		"\x00\x01t\x05\x02\x00\x00\x00\x00x": {HasExpiry: true},
		"\x00\x01t\x05\x02\x00\x00\x00\x07x": {HasExpiry: true, Expiry: 7},
	} {
		p, err := ReadPublish(Header{Type: Publish, Length: len(body)}, []byte(body), true, roomy)
		if err != nil || p.HasExpiry != want.HasExpiry || p.Expiry != want.Expiry {
			t.Errorf("%x: expiry %v, %d s, %v, want %v, %d s", body, p.HasExpiry, p.Expiry, err, want.HasExpiry, want.Expiry)
		}
	}
}

func TestReadAckAndDisconnect(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]byte{
		"\x00\x01": 0, "\x00\x01\x10": 0, "\x00\x01\x00\x00": 0, "\x00\x01\x00\x04\x1f\x00\x01r": 0,
		"": 0x81, "\x00": 0x81, "\x00\x00": 0x82, "\x00\x01\x01": 0x82, "\x00\x01\x00\x01": 0x81, "\x00\x01\x00\x00x": 0x81,
		"\x00\x01\x00\x03\x23\x00\x01": 0x81,
	} {
		if _, _, err := ReadAck(Puback, []byte(body), true, roomy); code(err) != want {
			t.Errorf("PUBACK %x: %v, want code 0x%02x", body, err, want)
		}
	}
	if _, _, err := ReadAck(Puback, []byte("\x00\x01\x00"), false, roomy); code(err) != 0x81 {
		t.Errorf("PUBACK of 3.1.1 with a reason: %v, want code 0x81", err)
	}
	for body, want := range map[string]byte{
		"": 0, "\x00": 0, "\x04": 0, "\x00\x05\x11\x00\x00\x00\x01": 0, "\x8e": 0x82, "\x00\x05\x11\x00\x00\x00": 0x81, "\x00\x00x": 0x81,
	} {
		if _, err := ReadDisconnect([]byte(body), true, roomy); code(err) != want {
			t.Errorf("DISCONNECT %x: %v, want code 0x%02x", body, err, want)
		}
	}
	if d, err := ReadDisconnect([]byte{4}, true, roomy); d.Reason != 4 || err != nil {
		t.Errorf("reason %d, %v, want 4: the will is asked for", d.Reason, err)
	}
	if _, err := ReadDisconnect([]byte{0}, false, roomy); code(err) != 0x81 {
		t.Errorf("DISCONNECT of 3.1.1 with a body: %v, want code 0x81", err)
	}
}

// What is allocated follows what arrives, not what is announced.
func TestReadBody(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("0123456789"), 100_000)
	for _, n := range []int{0, 1, Chunk, Chunk + 1, 3*Chunk + 7, len(body)} {
		taken := 0
		got, err := ReadBody(iotest.HalfReader(bytes.NewReader(body)), n, func(more int) error { taken += more; return nil })
		if err != nil || !bytes.Equal(got, body[:n]) || taken != max(0, n-Chunk) || cap(got) != n {
			t.Errorf("%d bytes: got %d of capacity %d, %d announced, %v", n, len(got), cap(got), taken, err)
		}
	}
	taken := 0
	_, err := ReadBody(bytes.NewReader(body[:Chunk+1]), 268_435_455, func(more int) error { taken += more; return nil })
	if !errors.Is(err, io.ErrUnexpectedEOF) || taken > Chunk {
		t.Errorf("%v after %d further bytes were allocated for %d that came", err, taken, Chunk+1)
	}
	full := errors.New("full")
	if _, err := ReadBody(bytes.NewReader(body), len(body), func(int) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v, want the error of grown", err)
	}
}
