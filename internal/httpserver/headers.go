package httpserver

import "net/http"

// year is how long a browser remembers that a host is to be asked by TLS alone, in seconds.
const year = "max-age=31536000"

// Headers returns a handler whose answers say to a browser that they are data: not to be shown as a page, put into the page of
// another site, guessed the type of, or kept (OWASP, REST Security Cheat Sheet). Over TLS they say that the host is to be asked
// by TLS alone (RFC 6797). What next sets itself goes before.
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
