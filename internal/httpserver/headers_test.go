package httpserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestHeaders asks in clear and by TLS, for what sets a header itself.
func TestHeaders(t *testing.T) {
	t.Parallel()
	handler := Headers(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "immutable")
		w.WriteHeader(http.StatusForbidden)
	}))
	for name, begin := range map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": httptest.NewTLSServer} {
		s := begin(handler)
		t.Cleanup(s.Close)
		resp, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		want := map[string]string{
			"Cache-Control": "immutable", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Referrer-Policy": "no-referrer",
			"X-Content-Type-Options": "nosniff", "Strict-Transport-Security": "",
		}
		if name == "https" {
			want["Strict-Transport-Security"] = "max-age=31536000"
		}
		for key, value := range want {
			if got := resp.Header.Get(key); got != value {
				t.Errorf("%s: %s: %q, want %q", name, key, got, value)
			}
		}
	}
}
