package signin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/oauth2"
)

// callback is the path to which the provider sends the browser. The client has it registered with any port (RFC 8252,
// section 7.3).
const callback = "/callback"

// An answer is what the browser brings.
type answer struct {
	code string
	err  error
}

// byBrowser has a browser of this machine bring an authorization code.
func (p *provider) byBrowser(ctx context.Context, o Options, nonce string) (*oauth2.Token, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the browser: %w", err)
	}
	p.config.RedirectURL = "http://" + l.Addr().String() + callback
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	answers := make(chan answer, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+callback, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		a, mine := read(r, state, o.How.Issuer)
		if !mine {
			http.Error(w, "This is not the answer to the sign-in that colony waits for.", http.StatusBadRequest)
			return
		}
		if a.err != nil {
			fmt.Fprintln(w, "Not signed in. The command says why; this window may be closed.")
		} else {
			fmt.Fprintln(w, "Signed in. The command goes on; this window may be closed.")
		}
		select {
		case answers <- a:
		default: // there is one already
		}
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if s.Shutdown(stop) != nil { // it lets the page be written
			_ = s.Close()
		}
		<-served
	}()
	address := p.config.AuthCodeURL(state, append(consent(p.config.Scopes), oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("nonce", nonce))...)
	fmt.Fprintf(o.Out, "To sign in for %s, open this in a browser of this machine:\n\n  %s\n\n", o.CO, address)
	o.Open(address)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case a := <-answers:
		if a.err != nil {
			return nil, a.err
		}
		return p.config.Exchange(p.context(ctx), a.code, oauth2.VerifierOption(verifier))
	}
}

// read reads what a browser brings; false where it is the answer to something else (RFC 6749, section 10.12), or of another
// provider (RFC 9207).
func read(r *http.Request, state, issuer string) (a answer, mine bool) {
	q := r.URL.Query()
	if q.Get("state") != state || q.Has("iss") && q.Get("iss") != issuer {
		return a, false
	}
	switch problem := q.Get("error"); {
	case problem != "":
		a.err = said(&oauth2.RetrieveError{ErrorCode: problem, ErrorDescription: q.Get("error_description")})
	case q.Get("code") == "":
		a.err = errors.New("the provider sends no code")
	}
	a.code = q.Get("code")
	return a, true
}
