package listen

import (
	"net"
	"strings"
	"testing"
)

func TestSpec(t *testing.T) {
	t.Parallel()
	good := []Spec{
		{Name: "a", Network: TCP, Address: "0.0.0.0:1883"},
		{Name: "a", Network: TLS, Address: ":8883", Certificate: "c", Key: "k", Users: []string{"*"}, From: []string{"10.0.0.1", "fd00::/8"}},
		{Name: "a", Network: WS, Address: ":80", Origins: []string{"https://hmi.example", "*"}},
		{Name: "a", Network: Unix, Address: "/run/mqtt.sock", Mode: "0660"},
	}
	for _, s := range good {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for want, s := range map[string]Spec{
		"no name":                   {Network: TCP, Address: ":1"},
		`network "quic"`:            {Name: "a", Network: "quic", Address: ":1"},
		"want host:port":            {Name: "a", Network: TCP, Address: "here"},
		"the absolute path":         {Name: "a", Network: Unix, Address: "mqtt.sock"},
		"one is missing":            {Name: "a", Network: TLS, Address: ":1", Key: "k"},
		"want tls or ws":            {Name: "a", Network: TCP, Address: ":1", Certificate: "c", Key: "k"},
		"without a certificate":     {Name: "a", Network: TLS, Address: ":1"},
		`mode "rw"`:                 {Name: "a", Network: Unix, Address: "/s", Mode: "rw"},
		`mode "0660"`:               {Name: "a", Network: TCP, Address: ":1", Mode: "0660"},
		"origins are for":           {Name: "a", Network: TCP, Address: ":1", Origins: []string{"*"}},
		`origin "hmi.example"`:      {Name: "a", Network: WS, Address: ":1", Origins: []string{"hmi.example"}},
		`origin "https://x.y/path"`: {Name: "a", Network: WS, Address: ":1", Origins: []string{"https://x.y/path"}},
		`pattern "[a"`:              {Name: "a", Network: TCP, Address: ":1", Users: []string{"[a"}},
		`"10.0.0.0/99"`:             {Name: "a", Network: TCP, Address: ":1", From: []string{"10.0.0.0/99"}},
		"use mode":                  {Name: "a", Network: Unix, Address: "/s", From: []string{"10.0.0.0/8"}},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %s", s, err, want)
		}
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	s := Spec{From: []string{"10.1.0.0/16", "192.0.2.1", "fd00::/8"}}
	from, err := s.prefixes()
	if err != nil {
		t.Fatal(err)
	}
	for ip, want := range map[string]bool{
		"10.1.2.3": true, "10.2.0.1": false, "192.0.2.1": true, "192.0.2.2": false, "::ffff:10.1.2.3": true, "fd00::1": true, "fe80::1": false,
	} {
		if got := allowed(from, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}); got != want {
			t.Errorf("%s: %v, want %v", ip, got, want)
		}
	}
}
