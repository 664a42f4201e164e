package httpserver

import "net/http"

// year is how long a browser remembers that a host is to be asked by TLS alone, in seconds.
const year = "max-age=31536000"

// Headers returns a handler whose answers mark themselves as data for a browser: it must not show them as a page, put them into
// the page of another site, guess their type, or store them (OWASP, REST Security Cheat Sheet). Over TLS they demand TLS for
// the host from then on (RFC 6797). Headers that next sets take precedence.
func Headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		if r.TLS != nil {
			h.Set("Strict-Transport-Security", year)
		}
		next.ServeHTTP(w, r)
	})
}
