package forwarded

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for list, ok := range map[string]bool{
		"": true, "10.0.0.7": true, "10.1.0.0/16 ::1 fd00::/8": true, "10.1.2.3/16": true,
		"proxy": false, "10.0.0.7:80": false, "10.0.0.0/33": false, "fe80::1%eth0": false, "::ffff:10.0.0.0/104": false, "10.0.0.7 x": false,
	} {
		got, err := Parse(strings.Fields(list))
		if (err == nil) != ok || ok && len(got) != len(strings.Fields(list)) {
			t.Errorf("%s: %v, %v", list, got, err)
		}
	}
}

// TestClient has requests come from a peer, through proxies or not, with what they and the client write.
func TestClient(t *testing.T) {
	proxies, err := Parse([]string{"10.0.0.0/8", "fd00::/8"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		peer   string
		header []string
		want   string
	}{
		{"192.0.2.1:9", nil, "192.0.2.1:9"},
		{"192.0.2.1:9", []string{"198.51.100.1"}, "192.0.2.1:9"}, // it is no proxy
		{"10.0.0.1:9", nil, "10.0.0.1:9"},
		{"10.0.0.1:9", []string{"198.51.100.1"}, "198.51.100.1:0"},
		{"[::ffff:10.0.0.1]:9", []string{"198.51.100.1"}, "198.51.100.1:0"},
		{"10.0.0.1:9", []string{"1.1.1.1, 198.51.100.1"}, "198.51.100.1:0"}, // the first is the client's own word
		{"10.0.0.1:9", []string{"1.1.1.1", "198.51.100.1, 10.0.0.2"}, "198.51.100.1:0"},
		{"[fd00::1]:9", []string{"[2001:db8::7]:443"}, "[2001:db8::7]:0"},
		{"[fd00::1]:9", []string{"2001:db8::7"}, "[2001:db8::7]:0"},
		{"10.0.0.1:9", []string{"198.51.100.1:7"}, "198.51.100.1:0"},
		{"10.0.0.1:9", []string{"10.9.9.9, 10.0.0.2"}, "10.9.9.9:0"}, // a client among the proxies
		{"10.0.0.1:9", []string{"unknown"}, "10.0.0.1:9"},
		{"10.0.0.1:9", []string{"198.51.100.1, unknown, 10.0.0.2"}, "10.0.0.2:0"},
		{"@", []string{"198.51.100.1"}, "@"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = c.peer
		for _, h := range c.header {
			r.Header.Add(header, h)
		}
		var got string
		proxies.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr })).ServeHTTP(httptest.NewRecorder(), r)
		if got != c.want {
			t.Errorf("%s with %q: %s, want %s", c.peer, c.header, got, c.want)
		}
	}
}
